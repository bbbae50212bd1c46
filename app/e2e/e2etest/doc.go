// Package e2etest runs the whole program for tests: Site is one deployment, Process one weir process of it, Sender the
// provider that posts signed events and sends again what was not answered 2xx, and Check the judge of what is left in
// Postgres.
package e2etest

import "time"

// Patience bounds every wait. It decides nothing but when a hanging test gives up.
const Patience = 2 * time.Minute

// pollEvery is the pause between two looks at the state of another process.
const pollEvery = 20 * time.Millisecond
