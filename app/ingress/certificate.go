package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

const (
	// certSettle lets a tool finish writing both files before they are read.
	certSettle = 200 * time.Millisecond
	// certInterval is the second net: file systems without notifications.
	certInterval = time.Minute
)

// certificate is a certificate that follows its files.
type certificate struct {
	certFile, keyFile string
	log               zerolog.Logger
	reloads           *prometheus.CounterVec
	current           atomic.Pointer[tls.Certificate]
}

func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.current.Load(), nil
		},
	}
}

// load reads both files and takes the certificate up. It reports whether it is another one than before. On an error the
// one before stays.
func (c *certificate) load() (changed bool, err error) {
	next, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return false, fmt.Errorf("ingress: certificate %s: %w", c.certFile, err)
	}
	if old := c.current.Load(); old != nil && sameChain(old.Certificate, next.Certificate) {
		return false, nil
	}
	c.current.Store(&next)
	return true, nil
}

func sameChain(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// expiry is the end of the current certificate's validity in seconds since 1970.
func (c *certificate) expiry() float64 {
	if cur := c.current.Load(); cur != nil && cur.Leaf != nil {
		return float64(cur.Leaf.NotAfter.Unix())
	}
	return 0
}

// watch follows the files until ctx ends. It watches their folders, because files are replaced by renaming, and mounted
// secrets by renaming a link beside them.
func (c *certificate) watch(ctx context.Context) {
	var events chan fsnotify.Event
	var errs chan error
	if w, err := fsnotify.NewWatcher(); err == nil {
		defer w.Close()
		for _, dir := range []string{filepath.Dir(c.certFile), filepath.Dir(c.keyFile)} {
			if err := w.Add(dir); err != nil {
				c.log.Warn().Err(err).Msg("certificate.unwatched")
			}
		}
		events, errs = w.Events, w.Errors
	} else {
		c.log.Warn().Err(err).Msg("certificate.unwatched")
	}
	// A change between New and here would otherwise wait for the next one.
	c.reload()
	tick := time.NewTicker(certInterval)
	defer tick.Stop()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			settle.Reset(certSettle)
		case err := <-errs:
			c.log.Warn().Err(err).Msg("certificate.watch_disturbed")
			settle.Reset(certSettle)
		case <-settle.C:
			c.reload()
		case <-tick.C:
			c.reload()
		}
	}
}

func (c *certificate) reload() {
	changed, err := c.load()
	switch {
	case err != nil:
		c.reloads.WithLabelValues("refused").Inc()
		c.log.Error().Err(err).Msg("certificate.refused")
	case changed:
		c.reloads.WithLabelValues("taken").Inc()
		c.log.Info().Time("not_after", c.current.Load().Leaf.NotAfter).Msg("certificate.reloaded")
	}
}
