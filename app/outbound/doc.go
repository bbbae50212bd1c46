// Package outbound makes the HTTP calls of effects: those that teams' handlers ask for, and those that forward events to
// the targets of the config.
package outbound
