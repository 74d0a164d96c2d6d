package sigv4

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	eksPrefix  = "k8s-aws-v1."
	eksHeader  = "x-k8s-aws-id"
	eksLife    = 14 * time.Minute // STS takes it for 15
	eksExpires = "60"             // STS does not look; old verifiers want no more
)

// EKSToken returns the bearer token that an EKS cluster takes, as `aws eks get-token`
// prints it: a presigned request to STS, GetCallerIdentity, that names the cluster. Nothing
// is sent. It is good for 14 minutes, or for as long as the credentials that signed it. It
// works with what LoadCredentials returned, whose region decides on the endpoint.
func (c *Credentials) EKSToken(ctx context.Context, cluster string) (token string, expires time.Time, err error) {
	if cluster == "" || strings.ContainsFunc(cluster, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", time.Time{}, errors.New("eks token: the cluster's name is empty, or has a character in it that none has: correct --eks-cluster")
	}
	creds, err := c.Retrieve(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	ch, ok := c.source.(*chain)
	if !ok {
		return "", time.Time{}, errors.New("eks token: these credentials come from no AWS configuration")
	}
	cfg := ch.config.Load() // there is one: credentials were got
	if cfg.Region == "" {
		return "", time.Time{}, &CredentialsError{Err: errors.New("no region for an EKS token"), Cure: "set --aws-region, AWS_REGION or the profile's region"}
	}
	now := c.kept.Now()
	client := sts.NewFromConfig(*cfg, func(o *sts.Options) {
		o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return creds, nil })
	})
	presigned, err := sts.NewPresignClient(client).PresignGetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}, func(o *sts.PresignOptions) {
		o.ClientOptions = append(o.ClientOptions, sts.WithAPIOptions(
			smithyhttp.AddHeaderValue(eksHeader, cluster), smithyhttp.AddHeaderValue("X-Amz-Expires", eksExpires)))
	})
	switch {
	case err != nil:
		return "", time.Time{}, fmt.Errorf("eks token: %s", oneLine(err.Error()))
	case presigned.Method != http.MethodGet || !strings.HasPrefix(presigned.URL, "https://"):
		return "", time.Time{}, errors.New("eks token: the STS endpoint is not https, and no cluster takes such a token: correct AWS_ENDPOINT_URL_STS or the profile's endpoint_url")
	}
	expires = now.Add(eksLife)
	if creds.CanExpire && creds.Expires.Before(expires) {
		expires = creds.Expires
	}
	return eksPrefix + base64.RawURLEncoding.EncodeToString([]byte(presigned.URL)), expires, nil
}
