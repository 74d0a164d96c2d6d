package pkcs11

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

func TestParseURI(t *testing.T) {
	u, err := ParseURI("pkcs11:token=The%20Software%20PKCS%2311%20Softtoken;manufacturer=Snake%20Oil,%20Inc.;model=1.0;serial=s%3B1;object=my-certificate;id=%69%95%3E%5C%F4%BD%EC%91;type=private;slot-id=327" +
		"?pin-source=file:/etc/token_pin&module-name=snake&x-vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	for what, is := range map[string][2]string{
		"token": {u.Token(), "The Software PKCS#11 Softtoken"}, "serial": {u.Serial(), "s;1"}, "object": {u.Object(), "my-certificate"},
		"id": {string(u.ID()), "\x69\x95\x3e\x5c\xf4\xbd\xec\x91"}, "pin-source": {u.PINSource(), "file:/etc/token_pin"},
		"module-name": {u.ModuleName(), "snake"}, "module-path": {u.ModulePath(), ""},
		"text": {u.String(), "pkcs11:token=The%20Software%20PKCS%2311%20Softtoken;manufacturer=Snake%20Oil,%20Inc.;model=1.0;serial=s%3B1;slot-id=327;object=my-certificate;id=%69%95%3E%5C%F4%BD%EC%91;type=private?module-name=snake&pin-source=file:/etc/token_pin"},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: got %q, want %q", what, is[0], is[1])
		}
	}
	if _, ok := u.PINValue(); ok {
		t.Error("a PIN out of nowhere")
	}
	if u, err := ParseURI("pkcs11:"); err != nil || u.String() != "pkcs11:" || u.ID() != nil {
		t.Errorf("an empty one: %v, %v", u, err)
	}
	if p := u.Pin("other", []byte{1}); p.Object() != "other" || string(p.ID()) != "\x01" || p.Token() != u.Token() || u.Object() != "my-certificate" {
		t.Errorf("Pin: %v of %v", p, u)
	}
}

// TestPINDoesNotShow in any way that a URI is printed.
func TestPINDoesNotShow(t *testing.T) {
	const pin = "s3cr3t"
	u, err := ParseURI("pkcs11:token=main?pin-value=" + pin + "&module-path=/x.so")
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := u.PINValue(); !ok || v != pin {
		t.Errorf("PINValue: %q, %v", v, ok)
	}
	want := "pkcs11:token=main?module-path=/x.so&pin-value=REDACTED"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{u, *u} {
			if got := fmt.Sprintf(verb, v); got != want {
				t.Errorf("%s of %T: %s, want %s", verb, v, got, want)
			}
		}
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "uri", u, "options", Options{URI: u})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "uri", *u, "options", fmt.Sprintf("%+v", Options{URI: u}))
	text, err := json.Marshal(map[string]any{"a": u, "b": *u, "c": Options{URI: u}.URI})
	if err != nil {
		t.Fatal(err)
	}
	if all := log.String() + string(text); strings.Contains(all, pin) || strings.Count(all, redacted) < 5 {
		t.Errorf("printed: %s", all)
	}
	if loc := u.text([]string{"module-name", "module-path"}); loc != "pkcs11:token=main?module-path=/x.so" {
		t.Errorf("without the PIN's attributes: %s", loc)
	}
}

func TestParseURIRefuses(t *testing.T) {
	const pin = "s3cr3t"
	for uri, want := range map[string]string{
		"token=main":                                         `does not begin with "pkcs11:"`,
		"pkcs11:main":                                        "no name=value",
		"pkcs11:token=a;token=b":                             "token stands there twice",
		"pkcs11:tokn=a":                                      "tokn is not known",
		"pkcs11:token=a b":                                   "token has a character that must be escaped",
		"pkcs11:token=ä":                                     "must be escaped",
		"pkcs11:token=%zz":                                   "must be escaped",
		"pkcs11:token=a;slot-id=x":                           "slot-id and library-version are numbers",
		"pkcs11:slot-id=-1":                                  "slot-id is no slot number",
		"pkcs11:type=secret-key":                             "type is private, public or cert",
		"pkcs11:token=a?module-path=x.so":                    "module-path is absolute",
		"pkcs11:token=a?pin-value=1&pin-source=/x":           "one of pin-source and pin-value",
		"pkcs11:token=a;pin-value=" + pin:                    "pin-value stands before the question mark",
		"pkcs11:token=a?pin-value=" + pin + ";x=1":           "pin-value has a character that must be escaped",
		"pkcs11:token=a?pin-value=" + pin + "%zz":            "pin-value has a character",
		"pkcs11:token=a?pin-value=" + pin + "%":              "pin-value has a character",
		"pkcs11:token=a?" + pin:                              "no name=value",
		"pkcs11:token=a?object=" + pin:                       "object stands behind the question mark",
		"pkcs11:" + pin + pin + pin + pin + pin + pin + "=x": "the name of an attribute is not known",
		"pkcs11:token=a?pin-value=a&pin-value=" + pin:        "pin-value stands there twice",
	} {
		u, err := ParseURI(uri)
		if !errors.Is(err, ErrURI) {
			t.Errorf("%s: %v, %v", uri, u, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, want) || strings.Contains(text, pin) || strings.Contains(text, "\n") {
			t.Errorf("%s:\ngot  %s\nwant %s", uri, text, want)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"pkcs11:", "pkcs11:token=a%20b;object=c;id=%01%02?module-path=/x.so&pin-value=1234", "pkcs11:serial=1;type=cert?pin-source=/x|y",
		"pkcs11:token=a?x-y=z&module-name=n", "pkcs11:slot-id=5;library-version=3.2"} {
		f.Add(s, "PIN-1234")
	}
	f.Fuzz(func(t *testing.T, s, pin string) {
		const marker = "0123456789PIN"
		u, err := ParseURI(s)
		if err == nil {
			again, err := ParseURI(u.String())
			if _, secret := u.PINValue(); err != nil || !secret && !reflect.DeepEqual(again, u) {
				t.Fatalf("%q printed as %q, which reads as %v, %v", s, u, again, err)
			}
		}
		for _, with := range []string{s + "?pin-value=" + marker + pin, s + "&pin-value=" + marker + pin, s + ";pin-value=" + marker} {
			u, err := ParseURI(with)
			if text := fmt.Sprint(u, err); strings.Contains(text, marker) && !strings.Contains(s, marker) && err != nil {
				t.Fatalf("%q: %s", with, text)
			}
			if u != nil {
				if _, ok := u.PINValue(); ok && strings.Contains(u.String(), "pin-value="+marker) {
					t.Fatalf("%q: %s", with, u)
				}
			}
		}
	})
}
