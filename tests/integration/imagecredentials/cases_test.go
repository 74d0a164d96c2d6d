//go:build linux

package imagecredentials

import (
	"fmt"
	"strings"
	"testing"
)

// compared is one image, pulled by kubelet with execproxy and with ECR's own
// provider. What they do is the upstream calls in their order, then what kubelet
// has in the end: "pulls as" somebody somewhere, or "pulls as nobody".
type compared struct {
	name      string
	image     string
	account   string            // namespace/name; "" no service account tokens
	roles     map[string]string // annotations of the account
	args      []string          // of execproxy
	env       map[string]string
	execproxy []string
	reference []string // nil: the same
	because   string   // why they differ
	says      string   // part of what kubelet logs of execproxy
}

// asNode is what happens for a private registry of a region, at the API's endpoint.
func asNode(region, endpoint string) []string {
	return []string{"ecr " + region + " " + endpoint + " AKIDNODE", "pulls as AKIDNODE in " + region}
}

var nobody = []string{"pulls as nobody"}

const team = "system:serviceaccount:team:app"

func cases() []compared {
	const (
		image    = "123456789012.dkr.ecr.us-west-2.amazonaws.com/app"
		endpoint = "api.ecr.us-west-2.amazonaws.com"
		stsCall  = "sts  sts.us-west-2.amazonaws.com " + team
	)
	withRole := map[string]string{roleAnnotation: roleARN}
	asRole := []string{stsCall, "ecr us-west-2 " + endpoint + " ASIAROLE", "pulls as ASIAROLE in us-west-2"}
	return []compared{
		{name: "private", image: image, execproxy: asNode("us-west-2", endpoint)},
		{name: "gov cloud", image: "123456789012.dkr.ecr.us-gov-west-1.amazonaws.com/app", execproxy: asNode("us-gov-west-1", "api.ecr.us-gov-west-1.amazonaws.com")},
		{name: "china", image: "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/app", execproxy: asNode("cn-north-1", "api.ecr.cn-north-1.amazonaws.com.cn")},
		{name: "iso", image: "123456789012.dkr.ecr.us-iso-east-1.c2s.ic.gov/app", execproxy: asNode("us-iso-east-1", "api.ecr.us-iso-east-1.c2s.ic.gov")},
		{name: "iso b", image: "123456789012.dkr.ecr.us-isob-east-1.sc2s.sgov.gov/app", execproxy: asNode("us-isob-east-1", "api.ecr.us-isob-east-1.sc2s.sgov.gov")},
		{name: "iso e", image: "123456789012.dkr.ecr.eu-isoe-west-1.cloud.adc-e.uk/app", execproxy: asNode("eu-isoe-west-1", "api.ecr.eu-isoe-west-1.cloud.adc-e.uk")},
		{name: "iso f", image: "123456789012.dkr.ecr.us-isof-south-1.csp.hci.ic.gov/app", execproxy: asNode("us-isof-south-1", "api.ecr.us-isof-south-1.csp.hci.ic.gov")},
		{name: "european sovereign cloud", image: "123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu/app", execproxy: asNode("eusc-de-east-1", "api.ecr.eusc-de-east-1.amazonaws.eu")},
		{
			name: "fips", image: "123456789012.dkr.ecr-fips.us-east-1.amazonaws.com/app",
			execproxy: asNode("us-east-1", "api.ecr-fips.us-east-1.amazonaws.com"), reference: asNode("us-east-1", "api.ecr.us-east-1.amazonaws.com"),
			because: "who names a FIPS registry wants FIPS for its token as well",
		},
		{
			name: "dual stack", image: "123456789012.dkr-ecr.us-west-2.on.aws/app",
			execproxy: asNode("us-west-2", "ecr.us-west-2.api.aws"), reference: asNode("us-west-2", endpoint),
			because: "a node without IPv4 cannot reach the other endpoint",
		},
		{
			name: "dual stack china", image: "123456789012.dkr-ecr.cn-north-1.on.amazonwebservices.com.cn/app",
			execproxy: asNode("cn-north-1", "ecr.cn-north-1.api.amazonwebservices.com.cn"), reference: asNode("cn-north-1", "api.ecr.cn-north-1.amazonaws.com.cn"),
			because: "a node without IPv4 cannot reach the other endpoint",
		},
		{
			name: "dual stack fips", image: "123456789012.dkr-ecr-fips.us-west-2.on.aws/app",
			execproxy: asNode("us-west-2", "ecr-fips.us-west-2.api.aws"), reference: asNode("us-west-2", endpoint),
			because: "both of the above",
		},
		{name: "public", image: "public.ecr.aws/team/app", execproxy: []string{"ecr-public us-east-1 api.ecr-public.us-east-1.amazonaws.com AKIDNODE", "pulls as AKIDNODE in us-east-1"}},
		{
			name: "public dual stack", image: "ecr-public.aws.com/team/app",
			execproxy: []string{"ecr-public us-east-1 ecr-public.us-east-1.api.aws AKIDNODE", "pulls as AKIDNODE in us-east-1"},
			reference: []string{"ecr-public us-east-1 api.ecr-public.us-east-1.amazonaws.com AKIDNODE", "pulls as AKIDNODE in us-east-1"},
			because:   "a node without IPv4 cannot reach the other endpoint",
		},
		{
			name: "port 443", image: "123456789012.dkr.ecr.us-west-2.amazonaws.com:443/app",
			execproxy: asNode("us-west-2", endpoint), reference: []string{"ecr us-west-2 " + endpoint + " AKIDNODE", "pulls as nobody"},
			because: "kubelet finds credentials by host and port; the reference leaves the port out",
		},
		{
			name: "docker hub", image: "docker.io/library/nginx",
			execproxy: nobody, reference: asNode("us-east-2", "api.ecr.us-east-2.amazonaws.com"),
			because: "credentials of AWS are for nobody else; the reference hands them to any registry",
		},
		{
			name: "a name that only begins like ECR", image: "123456789012.dkr.ecr.us-west-2.amazonaws.com.evil.example/app",
			execproxy: nobody, reference: asNode("us-east-2", "api.ecr.us-east-2.amazonaws.com"),
			because: "credentials of AWS are for nobody else",
		},
		{
			name: "a region under another partition's name", image: "123456789012.dkr.ecr.cn-north-1.amazonaws.com/app",
			execproxy: nobody, reference: asNode("cn-north-1", "api.ecr.cn-north-1.amazonaws.com.cn"),
			because: "ECR has no such registry, so somebody else may",
		},
		{name: "role", image: image, account: "team/app", roles: withRole, execproxy: asRole},
		{name: "role for public", image: "public.ecr.aws/team/app", account: "team/app", roles: withRole,
			execproxy: []string{"sts  sts.us-east-1.amazonaws.com " + team, "ecr-public us-east-1 api.ecr-public.us-east-1.amazonaws.com ASIAROLE", "pulls as ASIAROLE in us-east-1"},
			reference: []string{"sts  sts.us-east-2.amazonaws.com " + team, "ecr-public us-east-1 api.ecr-public.us-east-1.amazonaws.com ASIAROLE", "pulls as ASIAROLE in us-east-1"},
			because:   "the one region that the call needs anyway; the reference takes AWS_REGION, without which it has none",
		},
		{name: "role of AWS_ECR_ROLE_ARN", image: image, account: "team/app", env: map[string]string{"AWS_ECR_ROLE_ARN": roleARN}, execproxy: asRole},
		{
			name: "role that is somebody else's", image: image, account: "team/app", roles: map[string]string{roleAnnotation: otherRole},
			args: []string{"--service-account-fallback=node"}, execproxy: []string{stsCall, "pulls as nobody"},
			says: "assuming " + otherRole + " with the pod's service account token: AccessDenied: not authorized",
		},
		{
			name: "role that is none", image: image, account: "team/app", roles: map[string]string{roleAnnotation: "puller"},
			execproxy: nobody, reference: []string{stsCall, "pulls as nobody"}, because: "it cannot become right on the way",
			says: `"puller" is not a role; write arn:aws:iam::ACCOUNT:role/NAME`,
		},
		{
			name: "account without a role", image: image, account: "team/app",
			execproxy: nobody, reference: asNode("us-west-2", endpoint),
			because: "tokens were asked for so that pods do not pull as the node; falling back to it is a choice to be made",
			says:    "add it, or let such pods pull as the node with --service-account-fallback node",
		},
		{name: "account without a role, by policy", image: image, account: "team/app", args: []string{"--service-account-fallback=node"}, execproxy: asNode("us-west-2", endpoint)},
		{name: "static pod", image: image, account: "-", execproxy: asNode("us-west-2", endpoint)},
	}
}

// TestCompared holds execproxy against ECR's own provider, each under kubelet's
// plugin manager and against the same cloud.
func TestCompared(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if c.env == nil {
				c.env = map[string]string{}
			}
			j := job{Lookups: []lookup{{Image: c.image}}, Accounts: map[string]map[string]string{"team/app": c.roles}}
			if c.account == "team/app" {
				j.Lookups[0].Namespace, j.Lookups[0].Account = "team", "app"
			}
			p := provider{Match: []string{strings.SplitN(c.image, "/", 2)[0]}, Env: c.env, Tokens: c.account != ""}
			did := func() []string {
				j.Config = n.config(p)
				r := n.kubelet(j)
				calls, wrong := n.cloud.take()
				if len(wrong) > 0 {
					t.Errorf("%s: %q", p.Name, wrong)
				}
				var out []string
				for _, k := range calls {
					out = append(out, fmt.Sprintf("%s %s %s %s", k.Service, k.Region, k.Host, k.Who))
				}
				if p.Name != "reference" && !strings.Contains(r.Stderr, c.says) {
					t.Errorf("kubelet logs %q, want %q", r.Stderr, c.says)
				}
				if p.Name != "reference" && c.says == "" && r.Stderr != "" {
					t.Errorf("kubelet logs %q", r.Stderr)
				}
				return append(out, pulls(r.Found[0])...)
			}
			p.Name, p.Args = "execproxy-image-credentials", c.args
			if got := did(); fmt.Sprint(got) != fmt.Sprint(c.execproxy) {
				t.Errorf("execproxy: got %q, want %q", got, c.execproxy)
			}
			want := c.reference
			if (want == nil) != (c.because == "") {
				t.Errorf("the reference differs (%t) because %q", want != nil, c.because)
			}
			if want == nil {
				want = c.execproxy
			}
			p.Name, p.Args = "reference", nil
			if got := did(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("reference: got %q, want %q", got, want)
			}
		})
	}
}

// pulls is what kubelet can pull with.
func pulls(f found) (out []string) {
	for _, a := range f.Auths {
		who, where := "?", "?"
		if _, rest, ok := strings.Cut(a.Password, "-for-"); ok && a.Username == "AWS" {
			who, where, _ = strings.Cut(rest, "-in-")
		}
		out = append(out, "pulls as "+who+" in "+where)
	}
	if len(out) == 0 {
		out = nobody
	}
	return out
}
