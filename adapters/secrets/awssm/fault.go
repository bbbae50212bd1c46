package awssm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/weirhq/weir/adapters/secrets"
)

// named adds the reference to an error, without its arguments.
func named(err error, ref string) error {
	ref, _, _ = strings.Cut(ref, "?")
	return fmt.Errorf("%w (awssm:%s)", err, ref)
}

// code is AWS's name of the fault; empty if there is none.
func code(err error) string {
	var fault smithy.APIError
	if !errors.As(err, &fault) {
		return ""
	}
	return fault.ErrorCode()
}

// plainFault makes one line of what the SDK reports. It takes nothing over but the fault's name and the status, because texts
// of faults quote requests and answers. action is what the role needs.
func plainFault(ctx context.Context, err error, action string) error {
	if err == nil {
		return nil
	}
	var fault smithy.APIError
	var resp *awshttp.ResponseError
	status := 0
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	unavailable := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{secrets.ErrUnavailable}, args...)...)
	}
	if ctx.Err() != nil {
		return unavailable("AWS does not answer in time")
	}
	if !errors.As(err, &fault) {
		if status != 0 {
			return unavailable("what answers with %d is no Secrets Manager: check region and endpoint", status)
		}
		return unavailable("AWS does not answer: check region, endpoint and network")
	}
	switch code := fault.ErrorCode(); code {
	case "ResourceNotFoundException":
		return fmt.Errorf("%w: create the secret, or correct region and name", secrets.ErrNotFound)
	case "AccessDeniedException":
		return fmt.Errorf("secrets: AWS does not let this role at it: allow %s, and kms:Decrypt on its key", action)
	case "DecryptionFailure":
		return errors.New("secrets: AWS cannot decrypt it: check the state and the grants of its KMS key")
	case "EncryptionFailure":
		return errors.New("secrets: AWS cannot encrypt it: check the state and the grants of its KMS key")
	case "InvalidRequestException":
		if strings.Contains(fault.ErrorMessage(), "deletion") {
			return errors.New("secrets: the secret is marked for deletion: run aws secretsmanager restore-secret, or name another")
		}
		return errors.New("secrets: AWS does not answer for the secret in its present state (InvalidRequestException)")
	case "InvalidParameterException", "ValidationException":
		return fmt.Errorf("secrets: AWS refuses the name or the value (%s): correct the reference", code)
	case "LimitExceededException", "ResourceExistsException":
		return fmt.Errorf("secrets: AWS takes no further version (%s): look at the secret's quotas", code)
	case "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch",
		"ExpiredTokenException", "ExpiredToken", "MissingAuthenticationToken", "IncompleteSignature", "NotAuthorized":
		return unavailable("AWS refuses the credentials (%s): renew them and check this machine's clock", code)
	case "ThrottlingException", "Throttling", "ThrottledException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown":
		return unavailable("AWS throttles the requests (%s)", code)
	}
	if status == http.StatusTooManyRequests || status >= 500 || status == 0 {
		return unavailable("AWS answers %d", status)
	}
	return unavailable("AWS answers %d %s", status, safeCode(fault.ErrorCode()))
}

// safeCode keeps a name that is one.
func safeCode(code string) string {
	for _, r := range code {
		if (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return ""
		}
	}
	return code[:min(len(code), 64)]
}
