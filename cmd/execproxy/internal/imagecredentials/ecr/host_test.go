package ecr

import (
	"path"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	for host, want := range map[string]Host{
		"123456789012.dkr.ecr.us-west-2.amazonaws.com":                    {Account: "123456789012", Region: "us-west-2"},
		"123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com":           {Account: "123456789012", Region: "us-gov-west-1", FIPS: true},
		"123456789012.dkr-ecr.ap-southeast-4.on.aws":                      {Account: "123456789012", Region: "ap-southeast-4", DualStack: true},
		"123456789012.dkr-ecr-fips.us-west-2.on.aws":                      {Account: "123456789012", Region: "us-west-2", FIPS: true, DualStack: true},
		"123456789012.dkr.ecr.cn-northwest-1.amazonaws.com.cn":            {Account: "123456789012", Region: "cn-northwest-1"},
		"123456789012.dkr-ecr.cn-northwest-1.on.amazonwebservices.com.cn": {Account: "123456789012", Region: "cn-northwest-1", DualStack: true},
		"123456789012.dkr.ecr.us-iso-west-1.c2s.ic.gov":                   {Account: "123456789012", Region: "us-iso-west-1"},
		"123456789012.dkr.ecr.us-isob-east-1.sc2s.sgov.gov":               {Account: "123456789012", Region: "us-isob-east-1"},
		"123456789012.dkr.ecr.eu-isoe-west-1.cloud.adc-e.uk":              {Account: "123456789012", Region: "eu-isoe-west-1"},
		"123456789012.dkr.ecr.us-isof-south-1.csp.hci.ic.gov":             {Account: "123456789012", Region: "us-isof-south-1"},
		"123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu":                {Account: "123456789012", Region: "eusc-de-east-1"},
		"public.ecr.aws":     {Public: true, Region: "us-east-1"},
		"ecr-public.aws.com": {Public: true, Region: "us-east-1", DualStack: true},
	} {
		if got, ok := ParseHost(host); !ok || got != want {
			t.Errorf("%s: got %+v, %t, want %+v", host, got, ok, want)
		}
	}
	for _, host := range []string{
		"", "docker.io", "dkr.ecr.us-west-2.amazonaws.com", "12345678901.dkr.ecr.us-west-2.amazonaws.com", "1234567890123.dkr.ecr.us-west-2.amazonaws.com",
		"x123456789012.dkr.ecr.us-west-2.amazonaws.com", "123456789012.dkr.ecr.us-west-2.amazonaws.com.evil.example", "123456789012.dkr.ecr.us-west-2.evil.example",
		"123456789012.dkr.ecr.us-west-2.amazonaws.com.", "123456789012.dkr.ecr.us-west-2.on.aws", "123456789012.dkr-ecr.us-west-2.amazonaws.com",
		"123456789012.dkr.ecr.cn-north-1.amazonaws.com", "123456789012.dkr.ecr.us-west-2.amazonaws.com.cn", "123456789012.dkr.ecr.us-iso-east-1.amazonaws.com",
		"123456789012.dkr.ecr.us-isob-east-1.c2s.ic.gov", "123456789012.dkr.ecr.eusc-de-east-1.amazonaws.com", "123456789012.dkr-ecr.us-iso-east-1.",
		"123456789012.dkr.ecr.us-west-2/x.amazonaws.com", "123456789012.dkr.ecr.US-WEST-2.amazonaws.com", "123456789012.dkr.ecr.us_west_2.amazonaws.com",
		"123456789012.dkr.ecr..amazonaws.com", "123456789012.dkr.ecr.evil.example.us-west-2.amazonaws.com", "a.public.ecr.aws", "public.ecr.aws.example",
	} {
		if got, ok := ParseHost(host); ok {
			t.Errorf("%q was read as %+v", host, got)
		}
	}
}

// TestMatchImages: kubelet calls us for every registry that we know.
func TestMatchImages(t *testing.T) {
	match := func(pattern, host string) bool {
		p, h := strings.Split(pattern, "."), strings.Split(host, ".")
		if len(p) != len(h) {
			return false
		}
		for i := range p {
			if ok, err := path.Match(p[i], h[i]); err != nil || !ok {
				return false
			}
		}
		return true
	}
	for _, p := range partitions {
		region := p.prefix + "x-east-1"
		for _, host := range []string{"dkr.ecr." + region + "." + p.suffix, "dkr.ecr-fips." + region + "." + p.suffix, "dkr-ecr." + region + "." + p.dualStack, "dkr-ecr-fips." + region + "." + p.dualStack} {
			host = "123456789012." + host
			if _, ok := ParseHost(host); !ok {
				continue
			}
			found := false
			for _, m := range MatchImages() {
				found = found || match(m, host)
			}
			if !found {
				t.Errorf("no pattern matches %s", host)
			}
		}
	}
}

func TestCheckRoleARN(t *testing.T) {
	for _, arn := range []string{"arn:aws:iam::123456789012:role/r", "arn:aws-us-gov:iam::123456789012:role/path/r", "arn:aws-cn:iam::123456789012:role/a+b=c,d.e@f_g-h"} {
		if err := CheckRoleARN(arn); err != nil {
			t.Error(err)
		}
	}
	for _, arn := range []string{"", "r", "arn:aws:iam::123456789012:user/r", "arn:aws:iam::12345678901:role/r", "arn:aws:iam::123456789012:role/", "arn:aws:iam::123456789012:role/a b", "arn:evil:iam::123456789012:role/r"} {
		if CheckRoleARN(arn) == nil {
			t.Errorf("%q was taken", arn)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add("123456789012.dkr.ecr.us-west-2.amazonaws.com")
	f.Add("123456789012.dkr-ecr-fips.us-west-2.on.aws")
	f.Add("public.ecr.aws")
	f.Fuzz(func(t *testing.T, host string) {
		h, ok := ParseHost(host)
		if !ok || h.Public {
			return
		}
		// Put together again it is the same, so nothing was overlooked in it.
		sep, fips := ".", ""
		if h.DualStack {
			sep = "-"
		}
		if h.FIPS {
			fips = "-fips"
		}
		prefix := h.Account + ".dkr" + sep + "ecr" + fips + "." + h.Region + "."
		suffix, ok := strings.CutPrefix(host, prefix)
		known := false
		for _, p := range partitions {
			known = known || suffix != "" && (suffix == p.suffix || suffix == p.dualStack)
		}
		if !ok || !known {
			t.Errorf("%q was read as %+v", host, h)
		}
	})
}
