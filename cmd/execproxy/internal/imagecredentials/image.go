package imagecredentials

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// defaultRegistry is where an image is from that names no registry.
const defaultRegistry = "docker.io"

// An Image is where an image comes from: its registry and its repository.
type Image struct {
	Host string // lower case, without port
	Port string // "": none was named
	Path string // the repository, without tag or digest

	implied bool // the registry was not named
}

var (
	hostPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:[a-zA-Z0-9_](?:[a-zA-Z0-9_-]*[a-zA-Z0-9_])?)(?:\.[a-zA-Z0-9_](?:[a-zA-Z0-9_-]*[a-zA-Z0-9_])?)*$`)
	})
	ipv6Pattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\[[0-9a-fA-F:.]+\]$`) })
	digestPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-zA-Z=_-]{1,256}$`)
	})

	pathPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*$`)
	})
)

// ParseImage reads an image's name by the rules of container registries: the
// first part is a registry if it has a dot or a colon, or is localhost. It is
// strict, as what it says decides who gets to see credentials.
func ParseImage(image string) (Image, error) {
	bad := func(why string) (Image, error) {
		return Image{}, fmt.Errorf("image %.300q %s; correct it in the pod", image, why)
	}
	name, digest, digested := strings.Cut(image, "@")
	if digested && !digestPattern().MatchString(digest) {
		return bad("has a bad digest")
	}
	first, rest, several := strings.Cut(name, "/")
	im := Image{Host: defaultRegistry, Path: name, implied: true}
	if several && (strings.ContainsAny(first, ".:") || first == "localhost") {
		im = Image{Path: rest}
		host, port := first, ""
		if i := strings.LastIndexByte(first, ':'); i >= 0 && !strings.HasSuffix(first, "]") {
			host, port = first[:i], first[i+1:]
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
				return bad("has a registry with a bad port")
			}
		}
		if !hostPattern().MatchString(host) && !ipv6Pattern().MatchString(host) || len(host) > 255 {
			return bad("has a registry that is no host name")
		}
		im.Host, im.Port = strings.ToLower(host), port
	}
	if i := strings.LastIndexByte(im.Path, ':'); i > strings.LastIndexByte(im.Path, '/') {
		im.Path = im.Path[:i] // the tag; kubelet leaves it out
	}
	if !pathPattern().MatchString(im.Path) {
		return bad("is not a name that a registry can have")
	}
	return im, nil
}

// Registry is host and port, as a credential is for.
func (im Image) Registry() string {
	if im.Port != "" {
		return im.Host + ":" + im.Port
	}
	return im.Host
}

// key is the name under which kubelet finds credentials for all of the registry.
// It looks for those of the default registry under its API's name.
func (im Image) key() string {
	if im.implied {
		return "index." + defaultRegistry
	}
	return im.Registry()
}

// A Pattern says which images a rule is for: a registry's host, where * stands
// for one label or a part of one, with a port if the images have one, and a path
// of whole components. It is how kubelet's matchImages read, but for that: to
// kubelet, example.com/team is also example.com/teammate.
type Pattern struct {
	labels []string
	port   string
	path   string
}

var labelPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_*]([a-z0-9_*-]*[a-z0-9_*])?$`) })

// ParsePattern reads a pattern.
func ParsePattern(s string) (Pattern, error) {
	bad := func(why string) (Pattern, error) {
		return Pattern{}, fmt.Errorf("%.300q %s; write HOST[:PORT][/PATH], such as *.example.com or localhost:5000/team", s, why)
	}
	if strings.Contains(s, "://") {
		return bad("has a scheme")
	}
	host, path, _ := strings.Cut(s, "/")
	host, port, hasPort := strings.Cut(host, ":")
	if _, err := strconv.ParseUint(port, 10, 16); hasPort && err != nil {
		return bad("has a bad port")
	}
	p := Pattern{labels: strings.Split(strings.ToLower(host), "."), port: port, path: strings.TrimSuffix(path, "/")}
	for _, l := range p.labels {
		if !labelPattern().MatchString(l) {
			return bad("has no proper host")
		}
	}
	if strings.Trim(host, "*.") == "" {
		return bad("would match every registry of a kind, whosever it is")
	}
	if p.path != "" && !pathPattern().MatchString(p.path) {
		return bad("has a path that no repository has")
	}
	return p, nil
}

// Matches tells whether the pattern is for the image.
func (p Pattern) Matches(im Image) bool {
	return p.matchesRegistry(im) && (p.path == "" || im.Path == p.path || strings.HasPrefix(im.Path, p.path+"/"))
}

func (p Pattern) matchesRegistry(im Image) bool {
	host := im.Host
	if host == "index."+defaultRegistry { // another name of it
		host = defaultRegistry
	}
	labels := strings.Split(host, ".")
	if p.port != im.Port || len(labels) != len(p.labels) {
		return false
	}
	for i, l := range labels {
		if !glob(p.labels[i], l) {
			return false
		}
	}
	return true
}

// glob matches one label against one with stars in it.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return strings.HasSuffix(s, parts[len(parts)-1])
}

// outranks says which of two patterns that match the same image counts: the one
// that says more.
func (p Pattern) outranks(q Pattern) bool {
	if a, b := len(p.path), len(q.path); a != b {
		return a > b
	}
	a, b := strings.Join(p.labels, "."), strings.Join(q.labels, ".")
	if x, y := strings.Count(a, "*"), strings.Count(b, "*"); x != y {
		return x < y
	}
	return len(a) > len(b)
}

// String is the pattern in its one way of writing.
func (p Pattern) String() string {
	s := strings.Join(p.labels, ".")
	if p.port != "" {
		s += ":" + p.port
	}
	if p.path != "" {
		s += "/" + p.path
	}
	return s
}
