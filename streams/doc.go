// Package streams hands deliveries to the processors: through Redis Streams while Redis is there, straight from the store
// while it is not. It is the only package that issues Redis commands.
//
// # What stands in Redis
//
// Hints, never the truth. Per topic (a processor's name) there is
//
//	weir:{<topic>}         the stream; an entry's field "id" is the inbox id, nothing else is in it
//	weir:{<topic>}:epoch   a random value that is set when it is missing, so that it vanishes with the data
//
// and one consumer group, named like the topic and always created at 0. A consumer is named host-pid-bootid, so no
// process ever meets a pending list of its own from an earlier life. Every entry may be lost, doubled, delivered again or
// come in any order: the store's lease decides who works, and the store's rows say what is still to be done.
//
// # The way of a delivery
//
// Relay: references come from the committing process in memory (Fresh) and from the store (ClaimUnpublished, which covers
// crashes and other nodes). A batch is one MULTI per topic: SETNX epoch, GET epoch, XADD…, so the epoch of each entry is
// known. A publish error does not mean "not published": the row stays unpublished and may be published again.
//
// Consumer: one reader per group. It waits for a free worker, reads no more entries than workers are free, leases all of
// them with one statement, and then: leased ones go to a worker; finished ones are acknowledged and deleted; those leased
// elsewhere or not due stay pending. XACK and XDEL are one MULTI, so an entry that is in the stream, at or before the
// group's position and not pending, is an entry that somebody lost.
//
// Pending entries come back through the claim that every reader makes between two reads: entries of any consumer that have been
// idle longer than lease and margin, and entries of its own that it does not know (a reply that was lost on the way).
//
// # When Redis is away
//
// A monitor probes with a write that needs no memory. Two failures in a row: direct mode, in which every group leases due
// rows from the store. Two good ones: back, and every topic is reported to OnLoss, for what the stream has lost meanwhile
// is found by comparing (Lost). When Redis answers but refuses to grow (OOM), readers go on draining the stream and
// lease due rows from the store when the stream has nothing for them.
package streams
