package objects

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/weirhq/weir/inbox"
)

const (
	// triesMax is how often one call is sent, within its deadline.
	triesMax = 3
	// connsIdleMax keeps as many connections open as calls run at one time.
	connsIdleMax = 32
	dialTimeout  = 3 * time.Second
	// credentialsFor is how long credentials are used before they are read again.
	credentialsFor = time.Minute
	contentType    = "application/octet-stream"
)

// bucket is a Store in a bucket of an S3-compatible server.
type bucket struct {
	location
	client *minio.Client
	core   minio.Core
}

func newBucket(loc location, creds func() (Credentials, error)) (*bucket, error) {
	lookup := minio.BucketLookupAuto
	if loc.pathStyle != nil {
		lookup = minio.BucketLookupDNS
		if *loc.pathStyle {
			lookup = minio.BucketLookupPath
		}
	}
	client, err := minio.New(loc.host, &minio.Options{
		Creds:        credentials.New(&keys{read: creds}),
		Secure:       loc.secure,
		Region:       loc.region,
		BucketLookup: lookup,
		MaxRetries:   triesMax,
		// The client follows no redirect: it would sign for whatever host it is sent to.
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialTimeout,
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   connsIdleMax,
			IdleConnTimeout:       time.Minute,
			DisableCompression:    true,
		},
	})
	if err != nil {
		return nil, fault(urlRemedy, "its endpoint is not usable")
	}
	return &bucket{location: loc, client: client, core: minio.Core{Client: client}}, nil
}

// keys hands credentials to the client and reads them again after a while.
type keys struct {
	read  func() (Credentials, error)
	until time.Time
}

func (k *keys) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	c, err := k.read()
	if err != nil {
		return credentials.Value{}, err
	}
	k.until = time.Now().Add(credentialsFor)
	return credentials.Value{AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey, SessionToken: c.SessionToken,
		SignerType: credentials.SignatureV4}, nil
}

func (k *keys) Retrieve() (credentials.Value, error) { return k.RetrieveWithCredContext(nil) }

func (k *keys) IsExpired() bool { return time.Now().After(k.until) }

func (b *bucket) String() string {
	scheme := "http"
	if b.secure {
		scheme = "https"
	}
	return fmt.Sprintf("bucket %s/%s at %s://%s", b.bucket, b.prefix, scheme, b.host)
}

func (b *bucket) Put(ctx context.Context, key string, content []byte) error {
	_, err := b.client.PutObject(ctx, b.bucket, b.prefix+key, bytes.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{ContentType: contentType, DisableMultipart: true})
	return plain(err)
}

func (b *bucket) Get(ctx context.Context, key string, limit int64) ([]byte, error) {
	body, info, _, err := b.core.GetObject(ctx, b.bucket, b.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, plain(err)
	}
	defer body.Close()
	content := bytes.NewBuffer(make([]byte, 0, min(max(info.Size, 0), limit)+bytes.MinRead))
	if _, err := io.Copy(content, io.LimitReader(body, limit)); err != nil {
		return nil, plain(err)
	}
	return content.Bytes(), nil
}

func (b *bucket) Delete(ctx context.Context, keys []string) error {
	doomed := make(chan minio.ObjectInfo, len(keys))
	for _, key := range keys {
		doomed <- minio.ObjectInfo{Key: b.prefix + key}
	}
	close(doomed)
	var first error
	for failed := range b.client.RemoveObjects(ctx, b.bucket, doomed, minio.RemoveObjectsOptions{}) {
		if err := plain(failed.Err); first == nil && !errors.Is(err, inbox.ErrNoObject) {
			first = err
		}
	}
	if first == nil {
		first = ctx.Err()
	}
	return first
}

func (b *bucket) List(ctx context.Context, after string, limit int) ([]inbox.Object, error) {
	opts := minio.ListObjectsOptions{Prefix: b.prefix, Recursive: true, MaxKeys: limit, FetchOwner: new(false)}
	if after != "" {
		opts.StartAfter = b.prefix + after
	}
	var found []inbox.Object
	for o := range b.client.ListObjectsIter(ctx, b.bucket, opts) {
		if o.Err != nil {
			return nil, plain(o.Err)
		}
		key := strings.TrimPrefix(o.Key, b.prefix)
		// A server that ignores start-after must not make the caller look at one page for ever.
		if key <= after || strings.HasSuffix(key, "/") {
			continue
		}
		if found = append(found, inbox.Object{Key: key, Modified: o.LastModified}); len(found) == limit {
			break
		}
	}
	return found, ctx.Err()
}

func (b *bucket) Check(ctx context.Context) error {
	_, err := b.List(ctx, "", 1)
	return b.judge(err)
}

// plain takes address and request out of an error and names what is gone.
func plain(err error) error {
	var (
		refused minio.ErrorResponse
		request *url.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		if refused.Code == minio.NoSuchKey {
			return inbox.ErrNoObject
		}
		return &refusal{code: refused.Code, status: refused.StatusCode}
	case errors.As(err, &request):
		return request.Err
	}
	return err
}

// refusal is an answer that is not what was asked for.
type refusal struct {
	code   string
	status int
}

func (r *refusal) Error() string { return fmt.Sprintf("refused with %s (%d)", r.code, r.status) }

// judge turns an error of the check into a fault where waiting does not help.
func (b *bucket) judge(err error) error {
	var (
		refused   *refusal
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		noTLS     tls.RecordHeaderError
		noHost    *net.DNSError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return fault("give it one, or add its authority to the system's or to SSL_CERT_FILE", "the certificate of %s is not trusted", b.host)
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fault("correct the endpoint, or write it with http:// inside a network that you trust", "%s does not speak HTTPS", b.host)
	case errors.As(err, &noHost) && noHost.IsNotFound:
		return fault("correct the endpoint", "there is no host %s", b.host)
	case !errors.As(err, &refused):
		return err
	case refused.code == minio.NoSuchBucket:
		return fault("create it or correct the address", "there is no bucket %s at %s", b.bucket, b.host)
	case refused.status/100 == 3, refused.code == "AuthorizationHeaderMalformed":
		return fault("correct region and endpoint", "bucket %s is not at %s in region %s (%s)", b.bucket, b.host, b.region, refused.code)
	case refused.status == http.StatusForbidden, refused.status == http.StatusUnauthorized:
		return fault("correct object_access_key and object_secret_key, or let them list, read, write and delete there",
			"%s refuses the credentials for bucket %s (%s)", b.host, b.bucket, refused.code)
	case refused.status/100 == 4 && refused.status != http.StatusTooManyRequests && refused.status != http.StatusRequestTimeout:
		return fault("correct the address", "%s does not serve bucket %s (%s)", b.host, b.bucket, refused.code)
	}
	return err
}
