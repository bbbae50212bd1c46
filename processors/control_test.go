package processors

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestControl(t *testing.T) {
	t.Parallel()
	for sql, refused := range map[string]bool{
		"commit": true, " COMMIT WORK": true, ";;commit": true, "-- why\ncommit": true, "/* a /* b */ c */ Commit": true,
		"end": true, "abort": true, "begin": true, "start transaction": true, "rollback": true, "rollback work": true,
		"rollback prepared 'x'": true, "prepare transaction 'x'": true, "commit;": true, "\ufeffselect 1": false,
		"rollback to savepoint s": false, "rollback work to s": false, "rollback /* x */ to s": false, "savepoint s": false,
		"release s": false, "select 'commit'": false, "commit_log": false, "prepare p as select 1": false, "": false, "--": false,
		"savepoint weir_member": true, "release weir_member": true, "release savepoint weir_member": true,
		"rollback to weir_member": true, "rollback work to savepoint Weir_member": true, `rollback to savepoint "weir_member"`: true,
		"savepoint weird": false, "release savepoint s": false, `savepoint "my weir_member"`: false,
		"set search_path = x": true, "SET SESSION work_mem = '1MB'": true, "set role x": true, "set local role x": false,
		"set local work_mem = '1MB'": false, "set constraints all deferred": false, "set transaction read only": false,
		"reset all": true, "reset search_path": true, "discard all": true, "settle": false, "set_config": false,
		"/* open": false, "insert into ends values (1)": false, "endless": false,
	} {
		if got := control(sql, nil) != nil; got != refused {
			t.Errorf("%q: refused %v", sql, got)
		}
	}
	if control("select 1", []any{pgx.QueryExecModeSimpleProtocol}) == nil {
		t.Error("the simple protocol is let through")
	}
	if err := control("select $1", []any{pgx.QueryExecModeExec, 1}); err != nil {
		t.Error(err)
	}
}
