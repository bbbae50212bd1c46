package processorstest

import (
	"bytes"
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// strangeVersion is one that no processor declares.
const strangeVersion = "0000-weir-unknown"

// otherVersion is ev in a version that its processor does not know, and false where it takes every one.
func otherVersion(v processors.Versions, ev Event) (Event, bool) {
	for _, known := range v.Known {
		if strings.HasPrefix(known, "*") {
			return ev, false
		}
	}
	switch {
	case v.Header != "":
		ev.Header = maps.Clone(ev.Header)
		for name := range ev.Header {
			if strings.EqualFold(name, v.Header) {
				ev.Header[name] = strangeVersion
				return ev, true
			}
		}
		return ev, false
	case v.Member != "":
		path := []string{v.Member}
		if pointer, ok := strings.CutPrefix(v.Member, "/"); ok {
			path = strings.Split(pointer, "/")
		}
		var body any
		dec := json.NewDecoder(bytes.NewReader([]byte(ev.Body)))
		dec.UseNumber()
		if dec.Decode(&body) != nil || !replace(body, path) {
			return ev, false
		}
		changed, err := json.Marshal(body)
		ev.Body = string(changed)
		return ev, err == nil
	}
	return ev, false
}

// replace puts strangeVersion where path leads to.
func replace(in any, path []string) bool {
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch in := in.(type) {
	case map[string]any:
		if len(path) == 1 {
			_, there := in[name]
			in[name] = strangeVersion
			return there
		}
		return replace(in[name], path[1:])
	case []any:
		at, err := strconv.Atoi(name)
		if err != nil || at >= len(in) {
			return false
		}
		if len(path) == 1 {
			in[at] = strangeVersion
			return true
		}
		return replace(in[at], path[1:])
	}
	return false
}

func ids(ds ...inbox.Delivery) []uuid.UUID {
	var all []uuid.UUID
	for _, d := range ds {
		all = append(all, d.InboxID)
	}
	return all
}
