package clientauthentication

import (
	"bytes"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	upstream "k8s.io/client-go/pkg/apis/clientauthentication"
	"k8s.io/client-go/pkg/apis/clientauthentication/install"
)

func codecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme)
}

// Every released kubectl reads our answer as client-go's exec plugin code does.
func TestClientGoReadsAnswer(t *testing.T) {
	cert, key := realPair(t)
	for _, version := range []string{V1, V1Beta1} {
		for name, status := range map[string]*Status{"proxy": withProxy(), "pair": pairOnly()} {
			status.ClientCertificateData, status.ClientKeyData = cert, key
			status.ExpirationTimestamp = time.Now().Add(4 * time.Minute)
			data, err := (&ExecCredential{APIVersion: version, Status: status}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			gv, err := schema.ParseGroupVersion(version)
			if err != nil {
				t.Fatal(err)
			}
			got := &upstream.ExecCredential{}
			_, gvk, err := codecs().UniversalDecoder(gv).Decode(data, nil, got)
			if err != nil {
				t.Errorf("%s %s: %v", version, name, err)
				continue
			}
			if gvk.GroupVersion() != gv || gvk.Kind != Kind {
				t.Errorf("%s %s: read as %v", version, name, gvk)
			}
			s := got.Status
			if s == nil || s.Token != "" || s.ClientCertificateData != cert || s.ClientKeyData != key ||
				s.ExpirationTimestamp == nil || s.ExpirationTimestamp.Unix() != status.ExpirationTimestamp.Unix() {
				t.Errorf("%s %s: read as %+v", version, name, s)
			}
		}
	}
}

// We read what client-go asks, with and without provideClusterInfo.
func TestClientGoAsks(t *testing.T) {
	for _, version := range []string{V1, V1Beta1} {
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		encode := func(spec upstream.ExecCredentialSpec) []byte {
			data, err := runtime.Encode(codecs().LegacyCodec(gv), &upstream.ExecCredential{Spec: spec})
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		c, err := DecodeInfo(encode(upstream.ExecCredentialSpec{Interactive: true}))
		if err != nil {
			t.Fatal(err)
		}
		if c.APIVersion != version || c.Spec != (Spec{Interactive: true}) {
			t.Errorf("%s: read %+v", version, c)
		}

		asked := &upstream.Cluster{
			Server:                   "https://k8s.example:6443",
			TLSServerName:            "k8s",
			InsecureSkipTLSVerify:    true,
			CertificateAuthorityData: []byte(caPEM),
			ProxyURL:                 "http://proxy:3128",
			DisableCompression:       true,
		}
		for _, config := range []string{"", `{"auth":"mtls"}`} {
			if config != "" {
				asked.Config = &runtime.Unknown{Raw: []byte(config), ContentType: runtime.ContentTypeJSON}
			}
			data := encode(upstream.ExecCredentialSpec{Cluster: asked})
			if config == "" && !bytes.Contains(data, []byte(`"config":null`)) {
				t.Errorf("client-go does not send null any more: %s", data)
			}
			c, err := DecodeInfo(data)
			if err != nil {
				t.Fatal(err)
			}
			cl := c.Spec.Cluster
			if cl == nil || cl.Server != asked.Server || cl.TLSServerName != asked.TLSServerName ||
				cl.InsecureSkipTLSVerify != asked.InsecureSkipTLSVerify || !bytes.Equal(cl.CertificateAuthorityData, asked.CertificateAuthorityData) ||
				cl.ProxyURL != asked.ProxyURL || cl.DisableCompression != asked.DisableCompression || string(cl.Config) != config {
				t.Errorf("%s: read %+v of %s", version, cl, data)
			}
		}
	}
}

// What our client asks, a plugin that is built on client-go's types can read.
func TestClientGoReadsInfo(t *testing.T) {
	for _, version := range []string{V1, V1Beta1} {
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		data, err := (&ExecCredential{APIVersion: version, Spec: Spec{
			Cluster:      &Cluster{Server: "https://k8s.example:6443", CertificateAuthorityData: []byte(caPEM), Config: []byte(`{"auth":"mtls"}`)},
			LockFilePath: "/tmp/lock",
		}}).EncodeInfo()
		if err != nil {
			t.Fatal(err)
		}
		got := &upstream.ExecCredential{}
		if _, _, err := codecs().UniversalDecoder(gv).Decode(data, nil, got); err != nil {
			t.Fatal(err)
		}
		if cl := got.Spec.Cluster; cl == nil || cl.Server != "https://k8s.example:6443" || string(cl.CertificateAuthorityData) != caPEM || cl.Config == nil {
			t.Errorf("%s: read as %+v", version, cl)
		}
	}
}
