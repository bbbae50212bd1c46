package accounts

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weirhq/weir/processors"
)

// answerBytesMax bounds what is read of an answer.
const answerBytesMax = 1 << 20

// Client reads accounts over HTTP. Its Lookup is what Register asks for.
type Client struct {
	// BaseURL is where the API stands, such as "https://api.stripe.com". Required.
	BaseURL string
	// Key returns the current API key; asked for each time, it may change while weir runs. Required.
	Key func() string
	// HTTP defaults to http.DefaultClient; the time limit is Spec.FetchTimeout.
	HTTP *http.Client
}

// Lookup reads one account. Errors: ErrUnknown; a RetryAfter where the provider names a time.
func (c Client) Lookup(ctx context.Context, accountID string) (Account, error) {
	var a Account
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.BaseURL+"/v1/accounts/"+url.PathEscape(accountID), nil)
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Key())
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return a, ErrUnknown
	case resp.StatusCode != http.StatusOK:
		err := fmt.Errorf("the provider answered %d", resp.StatusCode)
		if seconds, parseErr := strconv.Atoi(resp.Header.Get("Retry-After")); parseErr == nil {
			return a, processors.RetryAfter(time.Duration(seconds)*time.Second, err)
		}
		return a, err
	}
	return a, json.NewDecoder(io.LimitReader(resp.Body, answerBytesMax)).Decode(&a)
}
