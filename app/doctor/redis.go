package doctor

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// redisServer looks at Redis. It is never needed, so nothing here is worse than a warning but an eviction policy that
// throws streams away under load, just when they are needed.
func redisServer(ctx context.Context, cfg Config) []Finding {
	if cfg.RedisURL == "" {
		return []Finding{{Check: "redis", Level: Note, Found: "none is configured", Reason: "consumers ask Postgres for work, which is slower and loses nothing", Remedy: "set redis.url"}}
	}
	opts, err := redis.ParseURL(cfg.RedisURL)
	if err != nil {
		return []Finding{{Check: "redis", Level: Fail, Found: "the address does not parse", Reason: "a process does not start with it", Remedy: "set redis.url to redis://host:port/0"}}
	}
	opts.DialTimeout, opts.ReadTimeout, opts.MaxRetries, opts.DialerRetries = cfg.Timeout, cfg.Timeout, -1, 1
	c := redis.NewClient(opts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	info, err := c.Info(ctx, "server", "memory", "persistence", "clients").Result()
	if err != nil {
		return []Finding{{Check: "redis", Level: Warn, Found: "no answer", Reason: "consumers ask Postgres for work meanwhile, which is slower and loses nothing",
			Remedy: "check that Redis runs at the configured address and lets the user in"}}
	}
	values := infoValues(info)
	findings := []Finding{good("redis", "version "+values["redis_version"])}
	findings = append(findings, policy(ctx, c, values))
	return append(findings, persistence(values), memory(values))
}

func policy(ctx context.Context, c *redis.Client, values map[string]string) Finding {
	name := values["maxmemory_policy"]
	if name == "" {
		set, err := c.ConfigGet(ctx, "maxmemory-policy").Result()
		if name = set["maxmemory-policy"]; err != nil || name == "" {
			return Finding{Check: "redis maxmemory-policy", Level: Note, Found: "could not be read", Reason: "an evicted stream is work that must be found again in Postgres", Remedy: "make sure that it is noeviction"}
		}
	}
	f := good("redis maxmemory-policy", name)
	if !strings.EqualFold(name, "noeviction") {
		f.Level, f.Reason = Fail, "Redis may throw streams away when its memory is full; the reconciler brings the work back late"
		f.Remedy = "config set maxmemory-policy noeviction"
	}
	return f
}

// persistence is a note: what Redis holds is rebuilt from Postgres, so an append-only file costs more than it gives.
func persistence(values map[string]string) Finding {
	var on []string
	if values["aof_enabled"] == "1" {
		on = append(on, "append-only file")
	}
	if values["rdb_last_bgsave_status"] == "err" {
		return Finding{Check: "redis persistence", Level: Warn, Found: "the last snapshot failed", Reason: "with stop-writes-on-bgsave-error Redis then refuses every entry",
			Remedy: "make room for the snapshot, or turn snapshots off: weir rebuilds what Redis loses"}
	}
	f := good("redis persistence", "none that costs a write")
	if len(on) > 0 {
		f.Level, f.Found = Note, strings.Join(on, ", ")
		f.Reason, f.Remedy = "weir rebuilds what Redis loses, so the file only costs time", "turn it off if nothing else uses this Redis"
	}
	return f
}

func memory(values map[string]string) Finding {
	used, err1 := strconv.ParseInt(values["used_memory"], 10, 64)
	limit, err2 := strconv.ParseInt(values["maxmemory"], 10, 64)
	if errors.Join(err1, err2) != nil {
		return Finding{Check: "redis memory", Level: Note, Found: "could not be read"}
	}
	f := good("redis memory", size(used)+" used, no limit")
	if limit > 0 {
		f.Found = size(used) + " of " + size(limit) + " used"
		if used > limit*8/10 {
			f.Level, f.Reason = Warn, "a full Redis takes no entries; consumers then ask Postgres, which is slower"
			f.Remedy = "raise maxmemory, or find out why the consumers lag (weir events list --status pending)"
		}
	}
	return f
}

// mute keeps the library from writing lines of its own, which know nothing of ours.
type mute struct{}

func (mute) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(mute{}) }

func infoValues(info string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[key] = value
		}
	}
	return values
}
