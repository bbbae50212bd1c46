//go:build !faults

// Package fault names the places at which a process may be killed or stopped to prove that nothing is lost. Without the
// build tag "faults" every point is an empty function that the compiler removes.
package fault

// Point does nothing in this build.
func Point(string) {}
