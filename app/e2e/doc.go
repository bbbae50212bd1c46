// Package e2e holds the tests of the whole program: a real weir process on a real Postgres and a real Redis is killed,
// stopped, starved and cut off, while a sender plays the provider; then a checker reads the database and says whether a
// promise was broken. Package e2etest has the parts.
package e2e
