// Package devstacktest gives tests the real services that weir stands on: databases on a PostgreSQL server shared by the
// test binary, servers of a test's own to stop and kill, real and in-process Redis, and a proxy that loses chosen
// messages between a client and PostgreSQL.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }
//
// A missing service fails the test with the command that installs it. Nothing here skips.
package devstacktest
