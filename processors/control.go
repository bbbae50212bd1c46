package processors

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// controlError says that a handler has tried to end or begin a transaction, or to change the session. Other events' changes
// may stand in the same transaction, and other handlers use the same session, so the text is refused before it is sent.
type controlError struct{ word, why string }

const (
	whyCommit  = "weir commits its changes together with the mark that the event is done"
	whySession = "the next handler would find the session changed; use SET LOCAL, which ends with the transaction"
	whyName    = "savepoints whose names begin with weir_ are weir's own"
)

func (e *controlError) Error() string {
	return fmt.Sprintf("processors: %s is not for a handler: %s", e.word, e.why)
}

var errSimpleProtocol = errors.New("processors: the simple query protocol is not for a handler: one text may hold several statements there")

func isControl(err error) bool {
	var refused *controlError
	return errors.As(err, &refused) || errors.Is(err, errSimpleProtocol)
}

// control refuses statements that end or begin a transaction or change the session. The extended protocol takes one statement a text, so its
// first words decide.
func control(sql string, args []any) error {
	if len(args) > 0 {
		if mode, ok := args[0].(pgx.QueryExecMode); ok && mode == pgx.QueryExecModeSimpleProtocol {
			return errSimpleProtocol
		}
	}
	sql = skipBlank(sql)
	word, rest := firstWord(sql)
	switch word {
	case "COMMIT", "END", "ABORT", "BEGIN", "START":
		return &controlError{word, whyCommit}
	case "ROLLBACK":
		next, more := firstWord(skipBlank(rest))
		if next == "WORK" || next == "TRANSACTION" {
			next, more = firstWord(skipBlank(more))
		}
		if next != "TO" {
			return &controlError{word, whyCommit}
		}
		return savepoint("ROLLBACK TO", more)
	case "SAVEPOINT", "RELEASE":
		return savepoint(word, rest)
	case "PREPARE":
		if next, _ := firstWord(skipBlank(rest)); next == "TRANSACTION" {
			return &controlError{"PREPARE TRANSACTION", whyCommit}
		}
	case "SET":
		switch next, _ := firstWord(skipBlank(rest)); next {
		case "LOCAL", "TRANSACTION", "CONSTRAINTS":
		default:
			return &controlError{word, whySession}
		}
	case "RESET", "DISCARD":
		return &controlError{word, whySession}
	}
	return nil
}

// savepoint refuses the names of the savepoints between which a group's members stand.
func savepoint(word, rest string) error {
	name, more := firstWord(skipBlank(rest))
	if name == "SAVEPOINT" {
		name, more = firstWord(skipBlank(more))
	}
	if name == "" { // a quoted one
		name, _ = firstWord(strings.TrimPrefix(skipBlank(more), `"`))
	}
	if strings.HasPrefix(name, "WEIR_") {
		return &controlError{word, whyName}
	}
	return nil
}

func firstWord(sql string) (word, rest string) {
	end := 0
	for end < len(sql) && (sql[end] == '_' || sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	return strings.ToUpper(sql[:end]), sql[end:]
}

// skipBlank removes white space, empty statements and comments, which nest in Postgres.
func skipBlank(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n")
			if end < 0 {
				return ""
			}
			sql = sql[end:]
		case strings.HasPrefix(sql, "/*"):
			depth, i := 1, 2
			for i < len(sql) && depth > 0 {
				switch {
				case strings.HasPrefix(sql[i:], "/*"):
					depth, i = depth+1, i+2
				case strings.HasPrefix(sql[i:], "*/"):
					depth, i = depth-1, i+2
				default:
					i++
				}
			}
			sql = sql[i:]
		default:
			return sql
		}
	}
}
