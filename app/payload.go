package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/objects"
)

// Payload says where large bodies are kept.
type Payload struct {
	// ObjectThreshold is the length in bytes above which a body goes to ObjectStore instead of the database. 0 means never.
	ObjectThreshold int64 `yaml:"object_threshold" env:"WEIR_PAYLOAD_OBJECT_THRESHOLD"`
	// ObjectStore is the address of a bucket or a folder: s3://BUCKET/PREFIX?endpoint=…&region=…&path_style=… or
	// file:///FOLDER. It must stay for as long as it holds payloads, whatever the threshold.
	ObjectStore string `yaml:"object_store" env:"WEIR_PAYLOAD_OBJECT_STORE"`
	// ObjectAccessKey, ObjectSecretKey and ObjectSessionToken name the credentials of a bucket: a file, or env:NAME. They
	// default to env:AWS_ACCESS_KEY_ID, env:AWS_SECRET_ACCESS_KEY and, if it is set, env:AWS_SESSION_TOKEN.
	ObjectAccessKey    string `yaml:"object_access_key"`
	ObjectSecretKey    string `yaml:"object_secret_key"`
	ObjectSessionToken string `yaml:"object_session_token"`
	// ObjectTimeout bounds each call of the store. Defaults to 5 s.
	ObjectTimeout time.Duration `yaml:"object_timeout"`
	// ObjectOrphanAge is the age at which an upload that was never committed is deleted. Defaults to 24 h, at least 1 h.
	ObjectOrphanAge time.Duration `yaml:"object_orphan_age"`
}

const (
	defaultObjectTimeout = 5 * time.Second
	// orphanAgeMin is far above the time from an upload to its commit.
	orphanAgeMin = time.Hour
)

func (p Payload) withDefaults() Payload {
	if p.ObjectTimeout == 0 {
		p.ObjectTimeout = defaultObjectTimeout
	}
	if p.ObjectOrphanAge == 0 {
		p.ObjectOrphanAge = inbox.DefaultOrphanAge
	}
	if p.ObjectAccessKey == "" && p.ObjectSecretKey == "" && p.ObjectSessionToken == "" && os.Getenv("AWS_SESSION_TOKEN") != "" {
		p.ObjectSessionToken = "env:AWS_SESSION_TOKEN"
	}
	if p.ObjectAccessKey == "" {
		p.ObjectAccessKey = "env:AWS_ACCESS_KEY_ID"
	}
	if p.ObjectSecretKey == "" {
		p.ObjectSecretKey = "env:AWS_SECRET_ACCESS_KEY"
	}
	return p
}

// credential reads what a reference names. The error shows neither the reference, which may be the key itself by
// mistake, nor what it holds.
func (c Config) credential(ref string) (string, error) {
	scheme, name := secrets.Split(ref)
	var value string
	switch scheme {
	case secrets.SchemeEnv:
		value = os.Getenv(name)
	case secrets.SchemeFile:
		text, err := os.ReadFile(c.resolve(name))
		if err != nil {
			return "", errors.New(plainCause(err))
		}
		value = string(text)
	default:
		return "", errors.New("is neither a file nor env:NAME")
	}
	if value = strings.TrimSpace(value); value == "" {
		return "", errors.New("names nothing that is set")
	}
	return value, nil
}

// objectCredentials reads the credentials of the bucket.
func (c Config) objectCredentials() (got objects.Credentials, err error) {
	p := c.Payload.withDefaults()
	for _, k := range []struct {
		key, ref string
		to       *string
	}{
		{"object_access_key", p.ObjectAccessKey, &got.AccessKey},
		{"object_secret_key", p.ObjectSecretKey, &got.SecretKey},
		{"object_session_token", p.ObjectSessionToken, &got.SessionToken},
	} {
		if k.ref == "" {
			continue
		}
		if *k.to, err = c.credential(k.ref); err != nil {
			return objects.Credentials{}, fmt.Errorf("payload.%s: %w", k.key, err)
		}
	}
	return got, nil
}

// openObjects makes the configured object store without touching it; nil if there is none.
func (c Config) openObjects() (objects.Store, error) {
	if c.Payload.ObjectStore == "" {
		return nil, nil
	}
	s, err := objects.New(objects.Config{URL: c.Payload.ObjectStore, Credentials: c.objectCredentials})
	if err != nil {
		return nil, fmt.Errorf("payload.object_store: %w", err)
	}
	return s, nil
}

func (c Config) checkPayload(k *checker) {
	p := c.Payload
	if p.ObjectThreshold < 0 {
		k.add("payload.object_threshold", "give a number of bytes, or leave it out for never", "is negative")
	}
	if p.ObjectTimeout < 0 {
		k.add("payload.object_timeout", "give a time above 0 or leave it out", "is negative")
	}
	if p.ObjectOrphanAge < orphanAgeMin {
		k.add("payload.object_orphan_age", fmt.Sprintf("give at least %v or leave it out", orphanAgeMin), "is too short for uploads under way")
	}
	if p.ObjectStore == "" {
		if p.ObjectThreshold > 0 {
			k.add("payload.object_store", "name a bucket or a folder, or leave payload.object_threshold out", "there is no place for bodies above the threshold")
		}
		return
	}
	var f *objects.Fault
	if _, err := objects.New(objects.Config{URL: p.ObjectStore, Credentials: c.objectCredentials}); errors.As(err, &f) {
		k.add("payload.object_store", f.Remedy, "%s", f.Problem)
	}
	if !objects.NeedsCredentials(p.ObjectStore) {
		return
	}
	for _, ref := range [][2]string{{"object_access_key", p.ObjectAccessKey}, {"object_secret_key", p.ObjectSecretKey}, {"object_session_token", p.ObjectSessionToken}} {
		if ref[1] == "" {
			continue
		}
		if _, err := c.credential(ref[1]); err != nil {
			k.add("payload."+ref[0], "name a file that holds the key, or a variable by env:NAME", "%v", err)
		}
	}
}

// describePayload says where large bodies are kept.
func (c Config) describePayload() string {
	s, err := c.openObjects()
	switch {
	case err != nil || s == nil:
		return "no usable object store"
	case c.Payload.ObjectThreshold == 0:
		return "all in the database, former ones in " + s.String()
	}
	return fmt.Sprintf("above %d bytes in %s", c.Payload.ObjectThreshold, s)
}

// checkObjects makes sure that the object store is there and ours. What an operator must correct ends the start; a store that
// does not answer now costs large bodies alone and is only told of.
func (a *App) checkObjects(ctx context.Context) error {
	s, err := a.cfg.openObjects()
	if err != nil || s == nil {
		return err
	}
	checking, cancel := context.WithTimeout(ctx, a.cfg.Payload.ObjectTimeout)
	defer cancel()
	err = s.Check(checking)
	var f *objects.Fault
	if errors.As(err, &f) {
		return fmt.Errorf("payload.object_store: %w", err)
	}
	if err != nil {
		a.log.Error().Str("store", s.String()).Str("err", err.Error()).Msg("objects.unavailable")
		return nil
	}
	err = a.store.ClaimObjects(ctx)
	switch {
	case errors.Is(err, inbox.ErrObjectsForeign):
		return fmt.Errorf("payload.object_store: %s holds the payloads of another database; give each database a bucket, prefix or folder "+
			"of its own, or delete its object weir-database if this database has replaced that one", s)
	case err != nil:
		// It answers, so this is its refusal to write.
		return fmt.Errorf("payload.object_store: %s cannot be written to: %w", s, err)
	}
	return nil
}

// acceptTimeout bounds what a receipt waits for: its upload, where it may need one, and its commit.
func (c Config) acceptTimeout() time.Duration {
	if c.Payload.ObjectThreshold > 0 {
		return c.Payload.ObjectTimeout + c.Timeouts.Commit
	}
	return c.Timeouts.Commit
}
