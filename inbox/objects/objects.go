// Package objects keeps large sealed payloads outside the database: in a bucket of an S3-compatible server, or in a
// folder. What it stores is sealed already; it adds durability and nothing else.
package objects

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weirhq/weir/inbox"
)

// Store is an object store for the inbox.
type Store interface {
	inbox.Objects
	// Check makes sure that the store is there and can be used, and makes a folder that is not there. It returns a *Fault for
	// what an operator must correct, and another error while the store does not answer.
	Check(ctx context.Context) error
	// String names the store without credentials.
	String() string
}

// Config says where objects are kept.
type Config struct {
	// URL is s3://BUCKET/PREFIX?endpoint=…&region=…&path_style=… or file:///FOLDER.
	URL string
	// Credentials gives the keys of an S3 store. It is asked again once a minute, so that keys can be exchanged while weir
	// runs.
	Credentials func() (Credentials, error)
}

// Credentials are the keys of an S3 store. They print as "[redacted]".
type Credentials struct {
	AccessKey string
	SecretKey string
	// SessionToken comes with temporary keys.
	SessionToken string
}

const redacted = "[redacted]"

// Format writes no key, whatever the verb.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText writes no key.
func (Credentials) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Fault is what an operator must correct. It holds no credential.
type Fault struct{ Problem, Remedy string }

func (f *Fault) Error() string {
	if f.Remedy == "" {
		return f.Problem
	}
	return f.Problem + "; " + f.Remedy
}

func fault(remedy, problem string, args ...any) *Fault {
	return &Fault{Problem: fmt.Sprintf(problem, args...), Remedy: remedy}
}

const urlRemedy = "write it like s3://bucket/prefix?endpoint=https://s3.example&region=eu-west-1, or file:///var/lib/weir/objects"

// New makes the store of a URL. It uses neither network nor disk. Every error is a *Fault.
func New(cfg Config) (Store, error) {
	loc, err := parse(cfg.URL)
	switch {
	case err != nil:
		return nil, err
	case loc.folder != "":
		return newFolder(loc.folder), nil
	case cfg.Credentials == nil:
		return nil, fault("name an access key and a secret key", "a bucket needs credentials")
	}
	return newBucket(loc, cfg.Credentials)
}

// NeedsCredentials says whether the store of a URL is used with credentials.
func NeedsCredentials(rawURL string) bool {
	loc, err := parse(rawURL)
	return err == nil && loc.bucket != ""
}

// location is a parsed URL: a folder, or a bucket.
type location struct {
	folder string

	bucket, prefix, host, region string
	secure                       bool
	// pathStyle is nil where the endpoint decides.
	pathStyle *bool
}

var bucketRE = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

func parse(rawURL string) (location, error) {
	var loc location
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Opaque != "" || u.Fragment != "":
		return loc, fault(urlRemedy, "is not the address of an object store")
	case u.User != nil:
		return loc, fault("name them by object_access_key and object_secret_key", "credentials do not belong into the address")
	case u.Scheme == "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "" {
			return loc, fault("write it like file:///var/lib/weir/objects", "names no folder by its whole path")
		}
		loc.folder = filepath.Clean(u.Path)
		return loc, nil
	case u.Scheme != "s3":
		return loc, fault(urlRemedy, "is not the address of an object store")
	case !bucketRE.MatchString(u.Host):
		return loc, fault(urlRemedy, "names no bucket")
	}
	loc.bucket, loc.prefix = u.Host, strings.Trim(u.Path, "/")
	if loc.prefix != "" {
		loc.prefix += "/"
	}
	return loc, loc.options(u.RawQuery)
}

// options reads the part behind the question mark.
func (loc *location) options(rawQuery string) error {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return fault(urlRemedy, "its options do not read")
	}
	for name := range query {
		switch name {
		case "endpoint", "region", "path_style":
		default:
			// Neither name nor value is shown: somebody may have tried to put a key here.
			return fault("known are endpoint, region, path_style", "has an unknown option")
		}
	}
	loc.region = query.Get("region")
	switch style := query.Get("path_style"); style {
	case "":
	case "true", "false":
		loc.pathStyle = new(style == "true")
	default:
		return fault("write true or false", "its path_style is neither true nor false")
	}
	endpoint := query.Get("endpoint")
	if endpoint == "" && loc.region == "" {
		return fault("add region=… for Amazon S3, or endpoint=https://…", "names neither region nor endpoint")
	}
	if loc.region == "" {
		loc.region = "us-east-1"
	}
	if endpoint == "" {
		endpoint = "https://s3." + loc.region + ".amazonaws.com"
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.User != nil || strings.Trim(at.Path, "/") != "" || at.RawQuery != "" ||
		(at.Scheme != "https" && at.Scheme != "http") {
		return fault("write it like https://s3.example:9000", "its endpoint is not an https address without path")
	}
	loc.host, loc.secure = at.Host, at.Scheme == "https"
	return nil
}
