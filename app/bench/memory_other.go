//go:build !linux

package bench

func onMemory(string) bool { return false }
