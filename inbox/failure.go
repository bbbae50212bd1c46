package inbox

// Failure is why a delivery is FAILED.
type Failure struct {
	// Cause is a text for people. It must be masked already.
	Cause string
	// Fingerprint is equal for failures that one repair will end. It must be free of values; empty means unknown.
	Fingerprint string
}

const (
	fingerprintBytesMax = 64
	// UnknownFingerprint is how people write the empty fingerprint.
	UnknownFingerprint = "unknown"
)

func cutFingerprint(f string) string {
	f = sanitise(f)
	if len(f) > fingerprintBytesMax {
		f = f[:fingerprintBytesMax]
	}
	return f
}
