package adapters

import (
	"fmt"
	"strconv"
	"time"
)

const githubRepositorySample = `"repository":{"id":1296269,"node_id":"MDEwOlJlcG9zaXRvcnkxMjk2MjY5","name":"hello-world","full_name":"octo-org/hello-world","private":false,"owner":{"login":"octo-org","id":6811672,"type":"Organization"},"html_url":"https://github.com/octo-org/hello-world","default_branch":"main"},"sender":{"login":"octocat","id":583231,"type":"User"}`

// githubSamples follow GitHub's "Webhook events and payloads"
// (https://docs.github.com/en/webhooks/webhook-events-and-payloads).
var githubSamples = []struct{ typ, body string }{
	{"push", `{"ref":"refs/heads/main","before":"{before}","after":"{after}",` + githubRepositorySample + `,"pusher":{"name":"octocat","email":"octocat@example.com"},"created":false,"deleted":false,"forced":false,"base_ref":null,"compare":"https://github.com/octo-org/hello-world/compare/{before}...{after}","commits":[{"id":"{after}","tree_id":"{tree}","distinct":true,"message":"Update README {seq}","timestamp":"{at}","url":"https://github.com/octo-org/hello-world/commit/{after}","author":{"name":"Octo Cat","email":"octocat@example.com","username":"octocat"},"added":[],"removed":[],"modified":["README.md"]}],"head_commit":{"id":"{after}","tree_id":"{tree}","message":"Update README {seq}","timestamp":"{at}"}}`},
	{"issues.opened", `{"action":"opened","issue":{"url":"https://api.github.com/repos/octo-org/hello-world/issues/{seq}","id":{id},"node_id":"I_weir{seq}","number":{seq},"title":"Something is wrong on day {seq}","user":{"login":"octocat","id":583231,"type":"User"},"labels":[],"state":"open","locked":false,"assignees":[],"milestone":null,"comments":0,"created_at":"{at}","updated_at":"{at}","closed_at":null,"author_association":"NONE","body":"It worked yesterday."},` + githubRepositorySample + `}`},
	{"pull_request.opened", `{"action":"opened","number":{seq},"pull_request":{"url":"https://api.github.com/repos/octo-org/hello-world/pulls/{seq}","id":{id},"node_id":"PR_weir{seq}","number":{seq},"state":"open","locked":false,"title":"Mend it, part {seq}","user":{"login":"octocat","id":583231,"type":"User"},"body":"Closes the issue.","created_at":"{at}","updated_at":"{at}","closed_at":null,"merged_at":null,"draft":false,"head":{"label":"octocat:mend","ref":"mend","sha":"{after}"},"base":{"label":"octo-org:main","ref":"main","sha":"{before}"},"merged":false,"mergeable":null,"comments":0,"commits":1,"additions":3,"deletions":1,"changed_files":1},` + githubRepositorySample + `}`},
}

// SampleTypes implements Sampler.
func (GitHub) SampleTypes() []string {
	types := make([]string, 0, len(githubSamples))
	for _, s := range githubSamples {
		types = append(types, s.typ)
	}
	return types
}

// Sample implements Sampler. The id belongs into the header, not into the body.
func (GitHub) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	for _, s := range githubSamples {
		if s.typ != typ {
			continue
		}
		sha := func(what string) string { return fmt.Sprintf("%.20x", sampleDigest(what, seq, at)) }
		body = fillSample(s.body, "{before}", sha("before"), "{after}", sha("after"), "{tree}", sha("tree"),
			"{seq}", strconv.Itoa(seq), "{id}", strconv.Itoa(2_000_000_000+seq), "{at}", at.UTC().Format(time.RFC3339))
		return sampleUUID(typ, seq, at), body, nil
	}
	return "", nil, fmt.Errorf("adapters: github: no sample of type %q", typ)
}
