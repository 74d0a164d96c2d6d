// Package ecr gets registry tokens of Amazon ECR, private and public, for the
// node's own AWS identity or for a role that a service account may assume.
package ecr

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// PublicRegion is the one region that has the API of ECR Public.
const PublicRegion = "us-east-1"

// A Host is a registry of ECR, and which API gives tokens for it.
type Host struct {
	Public    bool
	Account   string // 12 digits; of a private one
	Region    string
	FIPS      bool
	DualStack bool
}

var (
	privateHost = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([0-9]{12})\.dkr([.-])ecr(-fips)?\.([a-z]{2,8}(?:-[a-z]{1,16}){1,3}-[0-9]{1,2})\.([a-z0-9.-]+)$`)
	})

	publicHosts = map[string]bool{"public.ecr.aws": false, "ecr-public.aws.com": true} // dual stack?
)

// A partition is a part of AWS with an identity system, and DNS names, of its own.
type partition struct {
	prefix    string // of its regions
	suffix    string // of its registries
	dualStack string // of those that have IPv6, too; "": none are known
}

// partitions is in the order in which regions are looked up; the last one has
// every region that is in none of the others.
var partitions = []partition{
	{"cn-", "amazonaws.com.cn", "on.amazonwebservices.com.cn"},
	{"us-iso-", "c2s.ic.gov", ""},
	{"us-isob-", "sc2s.sgov.gov", ""},
	{"eu-isoe-", "cloud.adc-e.uk", ""},
	{"us-isof-", "csp.hci.ic.gov", ""},
	{"eusc-", "amazonaws.eu", ""},
	{"us-gov-", "amazonaws.com", "on.aws"},
	{"", "amazonaws.com", "on.aws"},
}

// ParseHost reads a registry's host name, without port. Anything that ECR does
// not have is not its registry: credentials of AWS are for nobody else. So the
// region must be one of the partition whose name the host ends in.
func ParseHost(host string) (Host, bool) {
	if dual, ok := publicHosts[host]; ok {
		return Host{Public: true, Region: PublicRegion, DualStack: dual}, true
	}
	m := privateHost().FindStringSubmatch(host)
	if m == nil {
		return Host{}, false
	}
	h := Host{Account: m[1], Region: m[4], FIPS: m[3] != "", DualStack: m[2] == "-"}
	for _, p := range partitions {
		if !strings.HasPrefix(h.Region, p.prefix) {
			continue
		}
		want := p.suffix
		if h.DualStack {
			want = p.dualStack
		}
		return h, want != "" && m[5] == want
	}
	return Host{}, false
}

// MatchImages are the patterns under which kubelet finds every registry that
// ParseHost knows. A star of kubelet's stands for one label.
func MatchImages() []string {
	var out []string
	for _, p := range partitions {
		for _, fips := range []string{"", "-fips"} {
			for _, pattern := range []string{"*.dkr.ecr" + fips + ".*." + p.suffix, "*.dkr-ecr" + fips + ".*." + p.dualStack} {
				if !strings.HasSuffix(pattern, ".") && !slices.Contains(out, pattern) {
					out = append(out, pattern)
				}
			}
		}
	}
	return append(out, "public.ecr.aws", "ecr-public.aws.com")
}
