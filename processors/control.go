package processors

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// controlError says that a handler has tried to end or begin a transaction. Other events' changes may stand in the same
// one, so the text is refused before it is sent.
type controlError struct{ word string }

func (e *controlError) Error() string {
	return fmt.Sprintf("processors: %s is not for a handler: weir commits its changes together with the mark that the event is done", e.word)
}

var errSimpleProtocol = errors.New("processors: the simple query protocol is not for a handler: one text may hold several statements there")

func isControl(err error) bool {
	var refused *controlError
	return errors.As(err, &refused) || errors.Is(err, errSimpleProtocol)
}

// control refuses statements that end or begin a transaction. The extended protocol takes one statement a text, so its
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
		return &controlError{word}
	case "ROLLBACK":
		next, more := firstWord(skipBlank(rest))
		if next == "WORK" || next == "TRANSACTION" {
			next, _ = firstWord(skipBlank(more))
		}
		if next != "TO" {
			return &controlError{word}
		}
	case "PREPARE":
		if next, _ := firstWord(skipBlank(rest)); next == "TRANSACTION" {
			return &controlError{"PREPARE TRANSACTION"}
		}
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
