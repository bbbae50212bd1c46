// Package ingress is the HTTP edge: POST /hooks/:endpoint on Fiber.
//
// A request passes five gates in this order, and each gate costs more than the one before:
//
//  1. framing: a message whose length could be read in two ways is refused and its connection closed;
//  2. admission, from the header alone: drain, method, transport, endpoint, content type, declared length, byte budget,
//     repeated security headers, token buckets. A client that waits for "100 Continue" is refused before it sends a byte;
//  3. the body, copied once from the stream into a buffer that this package owns, cut at the endpoint's limit;
//  4. the adapter: signature, freshness, envelope;
//  5. Accept: the commit. Only after it returns nil is the answer 2xx for an event that is to be stored.
//
// Every refusal is a cause, and causes.go alone knows which status and metric label a cause has. What is our own fault
// is always 503 with Retry-After. No answer is ever 3xx or 410.
//
// fasthttp reuses its buffers as soon as a handler returns, so nothing of a request is handed on without a copy: header
// fields are substrings of one copied block, the body is our own slice, the endpoint's id comes from the configuration.
//
// Facts about the server that the code relies on, each held by a test: a streamed body has no limit of its own; a body
// shorter than its Content-Length ends in io.EOF; a trailer field shows up among the header fields after the body has
// been read; Serve returns before the handlers have; a shutdown that timed out goes on serving kept connections.
package ingress
