package ingress

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

func (e *edge) shutdown() chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- e.Shutdown(ctx)
	}()
	for !e.Draining() {
		time.Sleep(time.Millisecond)
	}
	return done
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

func TestServer_ShutdownDrains(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	release := make(chan struct{})
	e.store.block = release
	committing := e.dial().send(post("a", "{}"))
	<-e.store.entered
	uploading := e.dial().send(head("b", "{}", "Content-Length: 2") + "{")
	busy := e.dial()
	busy.send(strikeThrough(post("c", "{}"))).want(404) // a kept connection
	silent := e.dial()
	idle := e.dial()
	idle.send(strikeThrough(post("d", "{}"))).want(404)

	done := e.shutdown()
	silent.ended()
	idle.ended()
	if _, err := net.DialTimeout("tcp", e.addr, time.Second); err == nil {
		t.Error("a new connection was accepted")
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown ended under a commit: %v", err)
	case err := <-e.serve:
		t.Fatalf("Serve returned under a commit: %v", err)
	case <-time.After(100 * time.Millisecond): // proves little alone; the answers below decide
	}
	close(release)
	if resp := committing.want(200); !resp.Close {
		t.Error("the connection is offered for further use")
	}
	// The upload was admitted when its handler began, or is refused; it is not left without an answer.
	if resp := uploading.send("}").must(); resp.StatusCode != 200 && resp.StatusCode != 503 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if err := receive(t, done, "the end of Shutdown"); err != nil {
		t.Error(err)
	}
	if err := receive(t, e.serve, "the end of Serve"); err != nil {
		t.Errorf("Serve: %v", err)
	}
	for _, err := range e.store.ctxErrs {
		if err != nil {
			t.Errorf("the commit's context ended: %v", err)
		}
	}
	if n := e.conns.count(); n != 0 {
		t.Errorf("%d connections left", n)
	}
}

// strikeThrough sends a request to an endpoint that does not exist.
func strikeThrough(s string) string { return "POST /hooks/no" + s[len("POST /hooks/in"):] }

func TestServer_DrainingRefusesOnKeptConnections(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	w := e.dial()
	w.send(post("a", "{}")).want(200)
	e.draining.Store(true)
	resp := w.send(post("b", "{}")).want(503)
	checkProblem(t, resp)
	if !resp.Close {
		t.Error("the connection is offered for further use")
	}
	w.ended()
	if e.count("", "unavailable", "shutting_down") != 1 || len(e.store.all()) != 1 {
		t.Error("stored or not counted")
	}
	e.draining.Store(false)
}

func TestServer_ShutdownThatTimesOutClosesEverything(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	release := make(chan struct{})
	e.store.block = release
	stuck := e.dial().send(post("a", "{}"))
	<-e.store.entered
	slow := e.dial().send(head("b", "", "Content-Length: 5") + "x")
	for e.metric("weir_inflight_bytes", nil) < 2*requestCost { // both are being handled
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := e.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	stuck.ended()
	slow.ended()
	if err := receive(t, e.serve, "the end of Serve"); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if !e.Draining() {
		t.Error("not draining any more")
	}
	close(release)
	for e.metric("weir_inflight_bytes", nil) != 0 { // the handler ends by itself
		time.Sleep(time.Millisecond)
	}
}

func TestServer_ServeAfterShutdown(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	if err := receive(t, e.shutdown(), "the end of Shutdown"); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serve(ln); !errors.Is(err, ErrDraining) {
		t.Errorf("Serve: %v", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}

func TestServer_ListenerThatBreaks(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Serve(ln) }()
	ln.Close()
	if err := receive(t, ended, "the end of Serve"); err == nil {
		t.Error("Serve returned nil without a shutdown")
	}
	e.dial().send(post("a", "{}")).want(200) // the other listener goes on
}

func TestServer_UnixSocket(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	path := t.TempDir() + "/s"
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go e.Serve(ln)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	e.wrap(c).send(post("a", "{}")).want(200)
}
