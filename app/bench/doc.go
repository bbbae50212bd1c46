// Package bench measures how fast receipts are acknowledged: an open-loop generator with its own clock, the server in a
// process of its own, a durable PostgreSQL, and a comparison with one transaction for each request.
//
// A request is due at a fixed time that no slow answer moves, and its latency counts from that time, so a stall shows in
// full. Bodies are signed before the run starts. After each round the acknowledged ids are looked up in the inbox: a fast
// answer without a row is a fault, not a result.
package bench
