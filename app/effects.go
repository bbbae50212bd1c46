package app

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/outbound"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// Effects says how side effects are sent.
type Effects struct {
	// Workers is the number of effects sent at one time. Defaults to 16.
	Workers int `yaml:"workers"`
	// Timeout bounds one call over HTTP. Defaults to 15 s.
	Timeout time.Duration `yaml:"timeout"`
	// Attempts is how often an HTTP effect or the forwarding of an event is tried. Defaults to 20.
	Attempts int `yaml:"attempts"`
	// Allow are address ranges that may be called beside public addresses, such as 10.1.0.0/16. Defaults to none.
	Allow []string `yaml:"allow"`
	// PlainHTTP admits addresses without TLS. Defaults to false.
	PlainHTTP bool `yaml:"plain_http"`
}

// Target forwards events to an address, for teams that do not write Go. It is a processor of the same name.
type Target struct {
	Name     string `yaml:"name"`
	Provider string `yaml:"provider"`
	// Endpoints and Types are patterns; '*' stands for any run of characters. Empty means all.
	Endpoints []string `yaml:"endpoints"`
	Types     []string `yaml:"types"`
	URL       string   `yaml:"url"`
	// Secrets names the document whose secrets sign what is forwarded.
	Secrets string `yaml:"secrets"`
	// Headers are further fields. They stand in the config, so they must hold no credential.
	Headers map[string]string `yaml:"headers"`
	// Ordered forwards the events of one object one after the other. Defaults to false.
	Ordered bool `yaml:"ordered"`
}

func (c Config) allowedRanges() (ranges []netip.Prefix) {
	for _, s := range c.Effects.Allow {
		if p, err := parseProxy(s); err == nil {
			ranges = append(ranges, p)
		}
	}
	return ranges
}

var fieldName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

// checkEffects checks the section effects and the targets.
func (c Config) checkEffects(k *checker) {
	if c.Effects.Workers < 0 || c.Effects.Workers > processors.WorkersMax {
		k.add("effects.workers", fmt.Sprintf("give 1 to %d or leave it out", processors.WorkersMax), "is not a possible number")
	}
	if d := c.Effects.Timeout; d != 0 && (d < processors.TimeoutMin || d > processors.TimeoutMax) {
		k.add("effects.timeout", fmt.Sprintf("give %v to %v or leave it out", processors.TimeoutMin, processors.TimeoutMax), "is not a possible time")
	}
	if c.Effects.Attempts < 0 || c.Effects.Attempts > processors.AttemptsMax {
		k.add("effects.attempts", fmt.Sprintf("give 1 to %d or leave it out", processors.AttemptsMax), "is not a possible number")
	}
	for i, s := range c.Effects.Allow {
		if _, err := parseProxy(s); err != nil {
			k.add(fmt.Sprintf("effects.allow.%d", i), "write it like 10.0.0.0/8 or 192.0.2.7", "is neither an address nor a CIDR range")
		}
	}
	if len(c.Targets) == 0 {
		return
	}
	if most := int64(processors.EffectBytesMax - 64<<10); c.Limits.BodyBytesMax > most {
		k.add("limits.body_bytes_max", fmt.Sprintf("give at most %d or leave the targets out", most), "is more than a target can be sent")
	}
	known := c.checkProviders(&checker{})
	cache := c.openSecrets(&checker{}, zerolog.Nop(), nil)
	for i, t := range c.Targets {
		key := targetKey(i, t)
		c.checkTarget(k, key, t)
		if known != nil {
			if _, ok := known.Lookup(t.Provider); !ok && t.Provider != "" {
				k.add(key+".provider", "`weir providers` lists those that there are", "there is no provider %q", t.Provider)
			}
		}
		if cache != nil && t.Secrets != "" {
			c.openTargetTrust(k, cache, key, t)
		}
	}
}

func targetKey(i int, t Target) string {
	if t.Name == "" {
		return fmt.Sprintf("targets.%d", i)
	}
	return "targets." + t.Name
}

func (c Config) checkTarget(k *checker, key string, t Target) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		k.add(key+".url", "write it like https://crm.example.com/hooks", "is not an address")
	case u.User != nil || u.Fragment != "":
		k.add(key+".url", "take them out", "holds a user or a fragment")
	case u.Scheme == "http" && !c.Effects.PlainHTTP:
		k.add(key+".url", "use https, or set effects.plain_http", "is not https")
	}
	if t.Secrets == "" {
		k.add(key+".secrets", "name the document with the secret that the receiver verifies with", "there is no secret")
	}
	for name, value := range t.Headers {
		if !fieldName.MatchString(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			k.add(key+".headers", "use letters, digits and '-' in names, and visible ASCII in values", "holds a field that HTTP cannot carry")
		} else if lower := strings.ToLower(name); strings.HasPrefix(lower, "webhook-") || slices.Contains([]string{"idempotency-key", "weir-attempt",
			"host", "content-length", "connection", "transfer-encoding"}, lower) {
			k.add(key+".headers", "take "+name+" out", "holds a field that weir sets")
		}
	}
}

// withTargets adds the targets of the config to what the teams have registered.
func (c Config) withTargets(registry *processors.Registry, k *checker) *processors.Registry {
	if len(c.Targets) == 0 {
		return registry
	}
	registry = registry.Clone()
	for i, t := range c.Targets {
		err := registry.Add(processors.Spec{Name: t.Name, Provider: t.Provider, Endpoints: t.Endpoints, Types: t.Types},
			outbound.Forward(t.Name, t.Ordered))
		if err != nil {
			k.add(targetKey(i, t), "", "%s", strings.TrimPrefix(err.Error(), "processors: "))
		}
	}
	return registry
}

// openTargetTrust reads what a target's requests are signed with, checked as a receiver would. It returns nil after a fault.
func (c Config) openTargetTrust(k *checker, cache *secretCache, key string, t Target) *trust {
	return c.openTrust(k, cache, key, adapters.StandardWebhooks{}, Endpoint{ID: "target " + t.Name, Provider: "standard_webhooks", Secrets: t.Secrets})
}

// openEffects opens what sends effects, and adds the senders that every program has to the registry.
func (a *App) openEffects(context.Context) error {
	if !a.cfg.Has(RoleProcessors) {
		return nil
	}
	k := &checker{file: a.cfg.path}
	a.targets = map[string]*trust{}
	var targets []outbound.Target
	for i, t := range a.cfg.Targets {
		tr := a.cfg.openTargetTrust(k, a.endpoints.cache, targetKey(i, t), t)
		if tr == nil {
			continue
		}
		a.targets[t.Name] = tr
		targets = append(targets, outbound.Target{Name: t.Name, URL: t.URL, Header: t.Headers, Secrets: tr.entry.Secrets})
	}
	if len(k.faults) > 0 {
		return &ConfigError{Faults: k.faults}
	}
	cfg := outbound.Config{Allow: a.cfg.allowedRanges(), PlainHTTP: a.cfg.Effects.PlainHTTP, Roots: a.opts.Roots}
	common := processors.Sender{Timeout: a.cfg.Effects.Timeout, Attempts: a.cfg.Effects.Attempts}
	registry := a.opts.Registry.Clone()
	for kind, send := range map[string]func(context.Context, processors.SendRequest) (processors.Reply, error){
		processors.KindHTTP: outbound.NewHTTP(cfg).Send, processors.KindTarget: outbound.NewTargets(cfg, targets).Send,
	} {
		sender := common
		sender.Send = send
		if err := registry.Sender(kind, sender); err != nil {
			return err
		}
	}
	a.opts.Registry = registry
	var err error
	a.dispatcher, err = processors.NewDispatcher(processors.DispatcherConfig{Store: a.store, Registry: registry,
		Workers: a.cfg.Effects.Workers, Drain: a.cfg.limits().drainHandlers, Log: a.log, Metrics: a.metrics})
	return err
}

// runProcessors hands deliveries to the processors and sends the effects that they ask for.
func (a *App) runProcessors(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.dispatcher.Run(ctx) })
	group.Go(func() error {
		a.watchTargets(ctx)
		return nil
	})
	group.Go(func() error {
		_ = a.runner.RunBackfills(ctx)
		return nil
	})
	group.Go(func() error {
		groups := a.groups()
		if len(groups) == 0 {
			<-ctx.Done()
			return nil
		}
		return a.streams.RunConsumers(ctx, groups)
	})
	return group.Wait()
}

// watchTargets takes up changed secret documents of targets.
func (a *App) watchTargets(ctx context.Context) {
	tick := time.NewTicker(secretsInterval)
	defer tick.Stop()
	for {
		for name, t := range a.targets {
			if t.path != "" || t.entry.Due() {
				t.report(ctx, "target "+name, a.log)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// effectsCollector tells of the unfinished effects and of disabled targets at each scrape.
type effectsCollector struct {
	stats   func(context.Context) (inbox.EffectStats, error)
	targets []string
	log     zerolog.Logger

	rows, oldest, disabled *prometheus.Desc
}

func newEffectsCollector(stats func(context.Context) (inbox.EffectStats, error), targets []Target, log zerolog.Logger) *effectsCollector {
	c := &effectsCollector{stats: stats, log: log,
		rows:     prometheus.NewDesc("weir_effect_rows", "Effects that are not final, by the processor that asked and status.", []string{"processor", "status"}, nil),
		oldest:   prometheus.NewDesc("weir_effect_oldest_seconds", "Age of the oldest effect that is neither final nor FAILED.", nil, nil),
		disabled: prometheus.NewDesc("weir_target_disabled", "1 for a target that is disabled: it has answered 410, or an operator has disabled it.", []string{"target"}, nil),
	}
	for _, t := range targets {
		c.targets = append(c.targets, t.Name)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *effectsCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.rows
	ch <- c.oldest
	ch <- c.disabled
}

const effectStatsTimeout = 3 * time.Second

// Collect implements prometheus.Collector. While Postgres does not answer there is nothing to tell.
func (c *effectsCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), effectStatsTimeout)
	defer cancel()
	st, err := c.stats(ctx)
	if err != nil {
		c.log.Warn().Err(err).Msg("effects.not_counted")
		return
	}
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, st.Oldest.Seconds())
	for _, n := range st.Counts {
		ch <- prometheus.MustNewConstMetric(c.rows, prometheus.GaugeValue, float64(n.Count), n.Processor, n.Status)
	}
	for _, name := range c.targets {
		value := 0.0
		if slices.Contains(st.Disabled, outbound.Destination(name)) {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(c.disabled, prometheus.GaugeValue, value, name)
	}
}
