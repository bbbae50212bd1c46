package adapters

import (
	"net/url"
	"slices"
	"strings"
)

// urlVariantsMax bounds how many addresses are tried.
const urlVariantsMax = 1000

// signsRequest reports whether the scheme signs what change changes: it signs a request twice and compares.
func (x *examination) signsRequest(change func(*Request)) bool {
	signer, ok := x.a.(RequestSigner)
	if !ok {
		return false
	}
	if len(x.ep.Secrets) == 0 {
		return true
	}
	var signed [2]Headers
	for i := range signed {
		req := Request{Method: x.req.Method, URL: "https://a.example/b", Body: x.req.Body, At: x.req.At}
		if i == 1 {
			change(&req)
		}
		if err := signer.SignRequest("id", "type", &req, x.ep.Secrets[0]); err != nil {
			return true
		}
		signed[i] = append(req.Headers, Header{"", string(req.Body)})
	}
	return !slices.Equal(signed[0], signed[1])
}

// urls tries the addresses by which the provider may have called, those that differ in least first.
func (x *examination) urls() bool {
	if !x.signsRequest(func(req *Request) { req.URL = "https://c.example/d" }) {
		return false
	}
	if x.req.URL == "" {
		x.found(URLChanged, "the scheme signs the URL, and none is known", "give the address as the provider calls it")
		return true
	}
	for _, v := range urlVariants(x.req, x.hints.URLs) {
		req := *x.req
		req.URL = v.url
		if x.holds(&req, x.ep) {
			x.signedAsReceived()
			x.found(URLChanged, "the signature belongs to another address: "+v.changed(), "set the endpoint's public_url to the address as the provider calls it")
			return true
		}
	}
	return false
}

// urlVariant is an address with the names of what differs in it.
type urlVariant struct {
	url         string
	differences []string
}

func (v urlVariant) changed() string { return strings.Join(v.differences, ", ") }

// choice is one value of a part of an address; an empty name is the value as it stands.
type choice struct{ name, value string }

// urlVariants combines the schemes, hosts, ports, paths and queries that proxies leave behind.
func urlVariants(req *Request, more []string) []urlVariant {
	var list []urlVariant
	for _, u := range more {
		list = append(list, urlVariant{u, []string{"it is one that was given as a hint"}})
	}
	u, err := url.Parse(req.URL)
	if err != nil || u.Host == "" {
		return list
	}
	raw := req.URL
	_, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	path, query, marked := strings.Cut(rest[end:], "?")
	if marked {
		query = "?" + query
	}
	get := func(name string) string { return firstOf(header(req.Headers, name)) }
	var combined []urlVariant
	for _, scheme := range schemeChoices(u.Scheme) {
		for _, host := range hostChoices(u, get) {
			for _, port := range portChoices(u, get) {
				for _, p := range pathChoices(path, get) {
					for _, q := range queryChoices(query) {
						v := urlVariant{url: scheme.value + "://" + host.value + port.value + p.value + q.value}
						for _, c := range []choice{scheme, host, port, p, q} {
							if c.name != "" {
								v.differences = append(v.differences, c.name)
							}
						}
						if len(v.differences) > 0 {
							combined = append(combined, v)
						}
					}
				}
			}
		}
	}
	slices.SortStableFunc(combined, func(a, b urlVariant) int { return len(a.differences) - len(b.differences) })
	list = append(list, combined...)
	return list[:min(len(list), urlVariantsMax)]
}

// firstOf returns the first of several values, as a chain of proxies writes them.
func firstOf(s string) string {
	s, _, _ = strings.Cut(s, ",")
	return strings.Trim(s, " \t\"")
}

func schemeChoices(scheme string) []choice {
	if scheme == "https" {
		return []choice{{"", scheme}, {"its scheme is http", "http"}}
	}
	return []choice{{"", scheme}, {"its scheme is https", "https"}}
}

func hostChoices(u *url.URL, get func(string) string) []choice {
	list := []choice{{"", u.Hostname()}}
	if strings.Contains(u.Hostname(), ":") {
		list[0].value = "[" + u.Hostname() + "]"
	}
	add := func(name, value string) {
		value, _, _ = strings.Cut(value, ":")
		if value != "" && !slices.ContainsFunc(list, func(c choice) bool { return c.value == value }) {
			list = append(list, choice{name, value})
		}
	}
	add("its host is that of X-Forwarded-Host", get("X-Forwarded-Host"))
	add("its host is that of X-Original-Host", get("X-Original-Host"))
	add("its host is that of Host", get("Host"))
	for part := range strings.SplitSeq(get("Forwarded"), ";") {
		if name, value, _ := strings.Cut(strings.TrimSpace(part), "="); strings.EqualFold(name, "host") {
			add("its host is that of Forwarded", strings.Trim(value, `"`))
		}
	}
	add("its host is in lower case", strings.ToLower(u.Hostname()))
	if bare, ok := strings.CutPrefix(u.Hostname(), "www."); ok {
		add("its host has no www", bare)
	} else {
		add("its host has www", "www."+u.Hostname())
	}
	return list
}

func portChoices(u *url.URL, get func(string) string) []choice {
	list := []choice{{"", ""}}
	if p := u.Port(); p != "" {
		list = []choice{{"", ":" + p}, {"it has no port", ""}}
	}
	ports := []string{"443", "80", get("X-Forwarded-Port"), "8443", "8080", "3000"}
	if _, p, ok := strings.Cut(get("Host"), ":"); ok {
		ports = append(ports, p)
	}
	for _, p := range ports {
		if _, ok := parseDigits(p); ok && !slices.ContainsFunc(list, func(c choice) bool { return c.value == ":"+p }) {
			list = append(list, choice{"it has a port", ":" + p})
		}
	}
	return list
}

func pathChoices(path string, get func(string) string) []choice {
	list := []choice{{"", path}}
	add := func(name, value string) {
		if !slices.ContainsFunc(list, func(c choice) bool { return c.value == value }) {
			list = append(list, choice{name, value})
		}
	}
	if bare, ok := strings.CutSuffix(path, "/"); ok {
		add("its path has no final slash", bare)
	} else {
		add("its path has a final slash", path+"/")
	}
	for _, name := range []string{"X-Forwarded-Prefix", "X-Original-URL", "X-Original-URI", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Replaced-Path"} {
		value, _, _ := strings.Cut(get(name), "?")
		switch {
		case value == "":
		case name == "X-Forwarded-Prefix":
			add("its path begins with X-Forwarded-Prefix", strings.TrimSuffix(value, "/")+path)
		default:
			add("its path is that of "+name, value)
		}
	}
	if decoded, err := url.PathUnescape(path); err == nil {
		add("its path is not escaped", decoded)
	}
	if parsed, err := url.Parse(path); err == nil {
		add("its path is escaped", parsed.EscapedPath())
	}
	if _, below, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/"); ok {
		add("its path lacks the first segment", "/"+below)
	}
	return list
}

func queryChoices(query string) []choice {
	if query == "" {
		return []choice{{"", ""}}
	}
	list := []choice{{"", query}, {"it has no query", ""}}
	if values, err := url.ParseQuery(query[1:]); err == nil {
		if sorted := "?" + values.Encode(); sorted != query {
			list = append(list, choice{"its query is sorted and escaped", sorted})
		}
		if decoded, err := url.QueryUnescape(query); err == nil && decoded != query {
			list = append(list, choice{"its query is not escaped", decoded})
		}
	}
	return list
}
