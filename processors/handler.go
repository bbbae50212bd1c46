package processors

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Handler is a team's code together with the decoding that it needs. JSON and Raw make one; the zero value is refused
// by Registry.Add.
type Handler struct {
	// decode runs outside the transaction, so that a large payload never holds a connection; what it returns runs inside.
	decode func(ev Event) (applyFunc, error)
	// item and all take its place in a batch handler: what is decoded of one event, and the call for several.
	item func(ev Event) (any, error)
	all  func(items []any) applyFunc
	// state is what a handler of Refetch takes.
	state reflect.Type
}

func (h Handler) empty() bool { return h.decode == nil && h.all == nil }

type applyFunc func(ctx context.Context, tx Tx) error

// Raw makes a Handler of a function that reads the payload with Event.Body itself.
func Raw(fn func(ctx context.Context, tx Tx, ev Event) error) Handler {
	if fn == nil {
		return Handler{}
	}
	return Handler{decode: func(ev Event) (applyFunc, error) {
		return func(ctx context.Context, tx Tx) error { return fn(ctx, tx, ev) }, nil
	}}
}

// JSON makes a Handler of a function that takes the payload as a T. The whole request body is decoded into it, before
// the transaction is opened; unknown fields are ignored, names are compared exactly, bytes that are not UTF-8 become
// U+FFFD, and a number that meets an any becomes a json.Number of encoding/json, which keeps its digits. A field of type
// json.Number takes a number, or a string that holds one, with its digits; an integer field takes no number with a
// fraction, an exponent or too many digits. A payload that is no JSON, names a member twice, or does not fit T is rejected: the event is FAILED with the byte position and the
// types involved, never with content.
func JSON[T any](fn func(ctx context.Context, tx Tx, ev Event, payload T) error) Handler {
	if fn == nil {
		return Handler{}
	}
	return Handler{decode: func(ev Event) (applyFunc, error) {
		var payload T
		if err := json.Unmarshal(ev.Body(), &payload, jsontext.AllowInvalidUTF8(true), digits); err != nil {
			return nil, Reject(&decodeError{reason: decodeReason(err)})
		}
		return func(ctx context.Context, tx Tx) error { return fn(ctx, tx, ev, payload) }, nil
	}}
}

// digits keeps numbers out of float64, which would change ids above 2^53.
var digits = json.WithUnmarshalers(json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
		if dec.PeekKind() != '0' {
			return errors.ErrUnsupported // decode as usual
		}
		number, err := dec.ReadValue()
		if err != nil {
			return err
		}
		*v = stdjson.Number(number)
		return nil
	}),
	// Some providers write amounts as numbers, others the same amounts as strings.
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *stdjson.Number) error {
		kind := dec.PeekKind()
		if kind != '0' && kind != '"' {
			return errors.ErrUnsupported
		}
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if kind == '"' {
			if value, err = jsontext.AppendUnquote(nil, value); err != nil || value.Kind() != '0' || !value.IsValid() || bytes.ContainsAny(value, " \t\r\n") {
				return errNoNumber
			}
		}
		*v = stdjson.Number(value)
		return nil
	}),
))

var errNoNumber = errors.New("a string that is no number")

// decodeError carries a text that is free of payload by construction, so it is saved without masking.
type decodeError struct{ reason string }

func (e *decodeError) Error() string { return e.reason }

func decodeReason(err error) string {
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		if semantic.JSONKind != 0 && semantic.GoType != nil {
			return fmt.Sprintf("payload does not decode: JSON %s where %s is expected, near byte %d",
				kindName(semantic.JSONKind), semantic.GoType, semantic.ByteOffset)
		}
		return fmt.Sprintf("payload does not decode near byte %d", semantic.ByteOffset)
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return fmt.Sprintf("payload names a JSON member twice in one object, at byte %d", syntactic.ByteOffset)
		}
		return fmt.Sprintf("payload is not valid JSON at byte %d", syntactic.ByteOffset)
	}
	return "payload does not decode as JSON"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '0':
		return "number"
	case '{', '}':
		return "object"
	case '[', ']':
		return "array"
	}
	return "value"
}
