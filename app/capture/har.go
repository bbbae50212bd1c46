package capture

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
)

// harFile is what is read of a HAR 1.2 document.
type harFile struct {
	Log *struct {
		Entries []struct {
			Started string `json:"startedDateTime"`
			Request *struct {
				Method  string `json:"method"`
				URL     string `json:"url"`
				Headers []struct {
					Name  string `json:"name"`
					Value string `json:"value"`
				} `json:"headers"`
				PostData *struct {
					Text     *string `json:"text"`
					Encoding string  `json:"encoding"`
					Params   []struct {
						Name  string `json:"name"`
						Value string `json:"value"`
					} `json:"params"`
				} `json:"postData"`
			} `json:"request"`
		} `json:"entries"`
	} `json:"log"`
}

func parseHAR(data []byte) ([]Request, error) {
	var file harFile
	if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\xEF\xBB\xBF")), &file); err != nil {
		return nil, malformed("the HAR file is not valid JSON, or has another structure")
	}
	if file.Log == nil || len(file.Log.Entries) == 0 {
		return nil, malformed("the HAR file has no entries")
	}
	if len(file.Log.Entries) > entriesMax {
		return nil, malformed("the HAR file has more than %d entries", entriesMax)
	}
	requests := make([]Request, 0, len(file.Log.Entries))
	for i := range file.Log.Entries {
		entry := &file.Log.Entries[i]
		src := entry.Request
		if src == nil || !token(src.Method) {
			return nil, malformed("entry %d has no request", i+1)
		}
		if u, err := url.Parse(src.URL); err != nil || u.Host == "" {
			return nil, malformed("entry %d has no whole URL", i+1)
		}
		req := Request{Method: src.Method, URL: src.URL}
		if at, err := time.Parse(time.RFC3339, entry.Started); err == nil {
			req.At = at
		}
		for _, h := range src.Headers {
			if strings.HasPrefix(h.Name, ":") { // a pseudo header of HTTP/2
				continue
			}
			if !token(h.Name) {
				return nil, malformed("entry %d has a header without a name", i+1)
			}
			req.Headers = append(req.Headers, adapters.Header{Name: h.Name, Value: h.Value})
		}
		if err := checkHeaders(req.Headers); err != nil {
			return nil, err
		}
		if post := src.PostData; post != nil {
			switch {
			case post.Text != nil && strings.EqualFold(post.Encoding, "base64"):
				body, err := base64.StdEncoding.DecodeString(*post.Text)
				if err != nil {
					return nil, malformed("entry %d has a body that is not base64", i+1)
				}
				req.Body = body
			case post.Text != nil && (*post.Text != "" || len(post.Params) == 0):
				req.Body = []byte(*post.Text)
			default:
				req.Notes = append(req.Notes, "the HAR file tells the form's fields alone: the body's bytes are a guess")
				var fields []string
				for _, p := range post.Params {
					fields = append(fields, url.QueryEscape(p.Name)+"="+url.QueryEscape(p.Value))
				}
				req.Body = []byte(strings.Join(fields, "&"))
			}
		}
		requests = append(requests, req)
	}
	return requests, nil
}
