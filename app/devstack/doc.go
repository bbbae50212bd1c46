// Package devstack brings the services that weir needs to a machine that has none running: a private PostgreSQL server
// from the binaries found there, and a Redis inside this process. `weir dev`, `weir bench` and the tests use it; a
// deployment never does.
//
// The PostgreSQL server listens on a Unix socket only, in a folder that only this user may enter, and asks for no
// password. Its data folder is kept between starts. One process at a time owns a data folder. The server ends with that
// process: at once on Linux, elsewhere at the next start on the folder.
package devstack
