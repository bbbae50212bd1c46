package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sighting says when an endpoint's secret version last verified a request.
type Sighting struct {
	EndpointID    string    `json:"endpoint"`
	Version       string    `json:"secret_version"`
	LastMatchedAt time.Time `json:"last_matched_at"`
}

// recordSightingsSQL takes the rows in one order, so that two instances cannot deadlock.
const recordSightingsSQL = `
insert into weir.secret_sighting as s (endpoint_id, secret_version, last_matched_at)
select * from unnest($1::text[], $2::text[], $3::timestamptz[]) as t (endpoint, version, at) order by 1, 2
on conflict (endpoint_id, secret_version) do update set last_matched_at = excluded.last_matched_at
where s.last_matched_at < excluded.last_matched_at`

// RecordSightings writes sightings, each endpoint and version at most once in a call. A later time that is known already
// stays.
func (s *Store) RecordSightings(ctx context.Context, seen []Sighting) error {
	if len(seen) == 0 {
		return nil
	}
	endpoints, versions, times := make([]string, len(seen)), make([]string, len(seen)), make([]time.Time, len(seen))
	for i, v := range seen {
		endpoints[i], versions[i], times[i] = v.EndpointID, v.Version, v.LastMatchedAt
	}
	_, err := s.open.Exec(ctx, recordSightingsSQL, endpoints, versions, times)
	return wrap("record sightings", err)
}

const sightingsSQL = `
select endpoint_id, secret_version, last_matched_at from weir.secret_sighting
where $1 = '' or endpoint_id = $1 order by endpoint_id, secret_version`

// Sightings lists when versions were last matched; an empty endpoint means all.
func (s *Store) Sightings(ctx context.Context, endpoint string) ([]Sighting, error) {
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[Sighting], sightingsSQL, endpoint)
	return rows, wrap("sightings", err)
}

// SecretActionKind names what an operator did with a secret, as it stands in the audit trail.
type SecretActionKind string

// The operations on secrets.
const (
	SecretRotate  SecretActionKind = "secret_rotate"
	SecretPromote SecretActionKind = "secret_promote"
	SecretRetire  SecretActionKind = "secret_retire"
	SecretRevoke  SecretActionKind = "secret_revoke"
)

// SecretAction is one operation of an operator on an endpoint's secret version. It holds no value.
type SecretAction struct {
	Kind       SecretActionKind
	EndpointID string
	Version    string
	// Operator and Reason are needed.
	Operator string
	Reason   string
}

const recordSecretActionSQL = `
insert into weir.operator_action (operator, action, reason, detail)
values ($1, $2, $3, jsonb_build_object('endpoint', $4::text, 'secret_version', $5::text))`

// RecordSecretAction writes the audit row of an operation. The row of SecretRevoke is the revocation itself: it holds
// for ever, on every instance that reads RevokedSecrets.
func (s *Store) RecordSecretAction(ctx context.Context, a SecretAction) error {
	if a.Operator == "" || a.Reason == "" || a.EndpointID == "" || a.Version == "" {
		return errors.New("inbox: secret action: endpoint, version, operator and reason are needed")
	}
	_, err := s.open.Exec(ctx, recordSecretActionSQL, a.Operator, string(a.Kind), sanitise(a.Reason), a.EndpointID, a.Version)
	return wrap("secret action", err)
}

// RevokedSecret is a version that verifies nothing any more, whatever its document says.
type RevokedSecret struct {
	EndpointID string
	Version    string
}

const revokedSecretsSQL = `
select distinct detail->>'endpoint', detail->>'secret_version' from weir.operator_action
where action = 'secret_revoke' and detail ? 'endpoint' and detail ? 'secret_version'`

// RevokedSecrets lists all revoked versions. It reads the whole table of operators' actions, which is small.
func (s *Store) RevokedSecrets(ctx context.Context) ([]RevokedSecret, error) {
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[RevokedSecret], revokedSecretsSQL)
	return rows, wrap("revoked secrets", err)
}
