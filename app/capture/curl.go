package capture

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirhq/weir/adapters"
)

// curlBare are the options of curl that take no argument and do not change the request.
var curlBare = map[string]bool{
	"--compressed": true, "--insecure": true, "-k": true, "--silent": true, "-s": true, "--show-error": true, "-S": true,
	"--location": true, "-L": true, "--include": true, "-i": true, "--verbose": true, "-v": true, "--fail": true, "-f": true,
	"--globoff": true, "-g": true, "--http1.1": true, "--http2": true, "--http1.0": true, "--no-buffer": true, "-N": true,
	"--path-as-is": true, "--tlsv1.2": true, "--tlsv1.3": true, "-O": true, "--fail-with-body": true, "--no-progress-meter": true,
	"-#": true, "--progress-bar": true, "--ipv4": true, "-4": true, "--ipv6": true, "-6": true,
}

// curlWithArgument are those that take one which does not change the request as it is signed.
var curlWithArgument = map[string]bool{
	"-o": true, "--output": true, "-m": true, "--max-time": true, "--connect-timeout": true, "--retry": true, "-w": true,
	"--write-out": true, "-x": true, "--proxy": true, "--cacert": true, "--cert": true, "-E": true, "--key": true,
	"--resolve": true, "--connect-to": true, "--max-redirs": true, "-D": true, "--dump-header": true, "-c": true,
	"--cookie-jar": true, "--interface": true, "--limit-rate": true,
}

// curlCommand is what a command line builds up.
type curlCommand struct {
	req     Request
	method  string
	headers adapters.Headers
	data    []string
	hasData bool
	json    bool
	get     bool
	head    bool
	removed map[string]bool
}

// parseCurl reads a curl command as shells write it. It runs nothing and reads no file that the command names.
func parseCurl(data []byte) (Request, error) {
	if !utf8.Valid(data) {
		return Request{}, malformed("the curl command is not UTF-8: keep the body in a file and give it by --body")
	}
	if strings.Contains(string(data), `^"`) {
		return Request{}, malformed("the command is written for Windows: copy it for bash")
	}
	words, err := shellWords(strings.TrimLeft(strings.TrimPrefix(string(data), "\uFEFF"), " \t\r\n$"))
	if err != nil {
		return Request{}, err
	}
	if len(words) < 2 {
		return Request{}, malformed("the curl command has no URL")
	}
	c := &curlCommand{removed: map[string]bool{}}
	for i := 1; i < len(words); i++ {
		word := words[i]
		argument := func() (string, error) {
			if i++; i >= len(words) {
				return "", malformed("curl's option %s needs an argument", plainOption(word))
			}
			return words[i], nil
		}
		if err := c.take(word, argument); err != nil {
			return Request{}, err
		}
	}
	return c.finish()
}

// take reads one word of the command.
func (c *curlCommand) take(word string, argument func() (string, error)) error {
	if word == "-" || !strings.HasPrefix(word, "-") {
		return c.setURL(word)
	}
	if strings.HasPrefix(word, "--") {
		name, value, joined := strings.Cut(word, "=")
		if joined {
			word, argument = name, func() (string, error) { return value, nil }
		}
	} else if len(word) > 2 && !curlBare[word] {
		// "-XPOST" is "-X POST", and "-sS" is "-s -S".
		value := word[2:]
		word = word[:2]
		if curlBare[word] {
			if err := c.take(word, argument); err != nil {
				return err
			}
			return c.take("-"+value, argument)
		}
		argument = func() (string, error) { return value, nil }
	}
	if curlBare[word] {
		return nil
	}
	if curlWithArgument[word] {
		_, err := argument()
		return err
	}
	return c.option(word, argument)
}

// option reads an option that changes the request.
func (c *curlCommand) option(word string, argument func() (string, error)) error {
	switch word {
	case "-G", "--get":
		c.get = true
		return nil
	case "-I", "--head":
		c.head = true
		return nil
	}
	known := map[string]func(string) error{
		"-X": c.setMethod, "--request": c.setMethod,
		"-H": c.addHeader, "--header": c.addHeader,
		"--url": c.setURL,
		"-d":    c.addData, "--data": c.addData, "--data-ascii": c.addData, "--data-binary": c.addData,
		"--data-raw":       func(s string) error { return c.append(s) },
		"--data-urlencode": c.addEncoded,
		"--json": func(s string) error {
			c.json = true
			return c.addData(s)
		},
		"-A": c.named("User-Agent"), "--user-agent": c.named("User-Agent"),
		"-e": c.named("Referer"), "--referer": c.named("Referer"),
		"-b": c.named("Cookie"), "--cookie": c.named("Cookie"),
		"-u": c.addUser, "--user": c.addUser,
	}
	set := known[word]
	if set == nil {
		return malformed("curl's option %s is not known here: leave it out if it does not change the request", plainOption(word))
	}
	value, err := argument()
	if err != nil {
		return err
	}
	return set(value)
}

// plainOption shows an option's name and nothing that may be joined to it.
func plainOption(word string) string {
	name, _, _ := strings.Cut(word, "=")
	if len(name) > 32 || !token(strings.TrimLeft(name, "-")) {
		return "of that name"
	}
	return name
}

func (c *curlCommand) setURL(s string) error {
	if c.req.URL != "" {
		return malformed("the curl command has more than one URL")
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return malformed("the curl command has no URL of http or https")
	}
	s, _, _ = strings.Cut(s, "#")
	c.req.URL = s
	return nil
}

func (c *curlCommand) setMethod(s string) error {
	if !token(s) {
		return malformed("the method is not one")
	}
	c.method = s
	return nil
}

// addHeader follows curl: "Name:" takes the header away, "Name;" sends it empty.
func (c *curlCommand) addHeader(s string) error {
	if strings.HasPrefix(s, "@") {
		return malformed("the command reads header fields from a file: write them out")
	}
	if name, ok := strings.CutSuffix(s, ";"); ok && token(name) {
		c.headers = append(c.headers, adapters.Header{Name: name})
		return nil
	}
	field, err := Header(s)
	if err != nil {
		return err
	}
	if field.Value == "" {
		c.removed[strings.ToLower(field.Name)] = true
		return nil
	}
	c.headers = append(c.headers, field)
	return nil
}

func (c *curlCommand) named(name string) func(string) error {
	return func(s string) error { return c.addHeader(name + ": " + s) }
}

func (c *curlCommand) addUser(s string) error {
	return c.addHeader("Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(s)))
}

func (c *curlCommand) append(s string) error {
	c.data, c.hasData = append(c.data, s), true
	return nil
}

func (c *curlCommand) addData(s string) error {
	if strings.HasPrefix(s, "@") {
		return malformed("the command reads the body from a file: give that file by --body")
	}
	return c.append(s)
}

func (c *curlCommand) addEncoded(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok && strings.Contains(s, "@") {
		return malformed("the command reads a field from a file: write it out")
	}
	if !ok {
		return c.append(url.QueryEscape(s))
	}
	if name == "" {
		return c.append(url.QueryEscape(value))
	}
	return c.append(name + "=" + url.QueryEscape(value))
}

// finish puts the request together with the defaults of curl.
func (c *curlCommand) finish() (Request, error) {
	if c.req.URL == "" {
		return Request{}, malformed("the curl command has no URL")
	}
	joint := "&"
	if c.json {
		joint = ""
	}
	body := strings.Join(c.data, joint)
	c.req.Method = "GET"
	switch {
	case c.get && c.hasData:
		mark := "?"
		if strings.Contains(c.req.URL, "?") {
			mark = "&"
		}
		c.req.URL += mark + body
	case c.hasData:
		c.req.Method, c.req.Body = "POST", []byte(body)
	case c.head:
		c.req.Method = "HEAD"
	}
	if c.method != "" {
		c.req.Method = c.method
	}
	c.req.Headers = c.headers
	u, err := url.Parse(c.req.URL)
	if err != nil {
		return Request{}, malformed("the curl command has no URL")
	}
	c.standard("Host", u.Host)
	if len(c.req.Body) > 0 {
		typ := "application/x-www-form-urlencoded"
		if c.json {
			typ = "application/json"
		}
		c.standard("Content-Type", typ)
		c.standard("Content-Length", strconv.Itoa(len(c.req.Body)))
	}
	return c.req, checkHeaders(c.req.Headers)
}

// standard adds a field that curl sends by itself.
func (c *curlCommand) standard(name, value string) {
	if _, count := c.req.Headers.Get(name); count == 0 && !c.removed[strings.ToLower(name)] {
		c.req.Headers = append(c.req.Headers, adapters.Header{Name: name, Value: value})
	}
}
