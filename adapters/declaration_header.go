package adapters

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
)

// parseSignature reads the signatures and, in the forms that hold one, the signed time.
func (a *declared) parseSignature(shown string, h Headers) (macs [][]byte, signed string, ok bool) {
	s := &a.decl.Signature
	switch s.Form {
	case "list":
		return a.parseList(shown)
	case "positional":
		return a.parsePositions(shown)
	case "numbered":
		macs, ok = a.parseNumbered(shown, h)
		return macs, "", ok
	case "prefix":
		bare, found := strings.CutPrefix(shown, s.Prefix)
		if !found && !s.PrefixOptional {
			return nil, "", false
		}
		shown = bare
	}
	mac, ok := a.decodeMAC(shown)
	return [][]byte{mac}, "", ok
}

// parseList reads entries of keys and values. A list that holds the time holds nothing but entries and at least one
// signature; in others, what is no entry is passed over.
func (a *declared) parseList(shown string) (macs [][]byte, signed string, ok bool) {
	s := &a.decl.Signature
	entries, signatures := 0, 0
	for part := range strings.SplitSeq(shown, s.Separator) {
		key, val, found := strings.Cut(strings.Trim(part, " \t"), s.Assign)
		switch {
		case !found && s.TimestampKey != "":
			return nil, "", false
		case !found:
			continue
		case s.TimestampKey != "" && key == s.TimestampKey:
			if signed != "" || val == "" {
				return nil, "", false
			}
			signed = val
		case key == s.Key:
			if signatures++; signatures > signaturesMax || s.Single && signatures > 1 {
				if s.Single {
					return nil, "", false
				}
				break
			}
			mac, decoded := a.decodeMAC(val)
			if decoded {
				macs = append(macs, mac)
			} else if s.Single {
				return nil, "", false
			}
		}
		entries++
	}
	if s.TimestampKey != "" {
		return macs, signed, signed != "" && signatures > 0
	}
	return macs, "", entries > 0 && (signatures > 0 || !s.Single)
}

// parsePositions reads "time,signature,signature…".
func (a *declared) parsePositions(shown string) (macs [][]byte, signed string, ok bool) {
	signed, rest, found := strings.Cut(shown, a.decl.Signature.Separator)
	if !found {
		return nil, "", false
	}
	considered := 0
	for val := range strings.SplitSeq(rest, a.decl.Signature.Separator) {
		if considered++; considered > signaturesMax {
			break
		}
		if mac, decoded := a.decodeMAC(strings.Trim(val, " \t")); decoded {
			macs = append(macs, mac)
		}
	}
	return macs, strings.Trim(signed, " \t"), true
}

// parseNumbered reads one signature from each of the headers and so on.
func (a *declared) parseNumbered(shown string, h Headers) (macs [][]byte, ok bool) {
	stem := strings.TrimSuffix(a.decl.Signature.Header, "1")
	for i := 1; i <= signaturesMax; i++ {
		if i > 1 {
			val, count := h.Get(stem + strconv.Itoa(i))
			if count == 0 {
				break
			}
			if count > 1 {
				return nil, false
			}
			shown = strings.Trim(val, " \t")
		}
		mac, decoded := a.decodeMAC(shown)
		if !decoded {
			return nil, false
		}
		macs = append(macs, mac)
	}
	return macs, true
}

// decodeMAC decodes a signature of the algorithm's length.
func (a *declared) decodeMAC(s string) ([]byte, bool) {
	var mac []byte
	var err error
	switch a.decl.Signature.Encoding {
	case "hex":
		if len(s) != hex.EncodedLen(a.macLen) {
			return nil, false
		}
		mac, err = hex.DecodeString(s)
	default:
		if len(s) > base64.StdEncoding.EncodedLen(a.macLen) {
			return nil, false
		}
		mac, err = a.base64().DecodeString(s)
	}
	return mac, err == nil && len(mac) == a.macLen
}

func (a *declared) base64() *base64.Encoding {
	if a.decl.Signature.Encoding == "base64url" {
		return base64.RawURLEncoding.Strict()
	}
	return base64.StdEncoding.Strict()
}
