package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
)

// Busybox is the image of pods on a Node: a shell and some 300 programs. Nothing
// ever pulls it.
const Busybox = "execproxy.test/busybox:1"

const pauseImage = "execproxy.test/pause:1"

// images makes the archives of both images in dir, to be imported by containerd.
func images(ctx context.Context, dir string) (files []string, err error) {
	pause := filepath.Join(dir, "pause")
	root, err := kubebin.Root()
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", pause, "./cmd/pause")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building pause: %w\n%s", err, out)
	}
	var holder layer
	if err := holder.program("pause", pause); err != nil {
		return nil, err
	}
	shell, err := busybox(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range []struct {
		name, ref string
		layer     *layer
		config    map[string]any
	}{
		{"pause", pauseImage, &holder, map[string]any{"Entrypoint": []string{"/pause"}}},
		{"busybox", Busybox, shell, map[string]any{"Cmd": []string{"sh"}, "Env": []string{"PATH=/bin"}}},
	} {
		data, err := archive(i.ref, i.layer, i.config)
		if err != nil {
			return nil, fmt.Errorf("making the image of %s: %w", i.name, err)
		}
		file := filepath.Join(dir, i.name+".tar")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// busybox is the root file system of the image of that name.
func busybox(ctx context.Context) (*layer, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, &MissingError{"busybox", "busybox-static"}
	}
	if dynamic, err := interpreted(path); err != nil || dynamic {
		return nil, fmt.Errorf("%s is not statically linked, so that no container can run it (%v): install Debian's busybox-static", path, err)
	}
	list, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", path, err)
	}
	var l layer
	for _, dir := range []string{"bin", "etc", "root", "tmp"} {
		if err := l.add(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil); err != nil {
			return nil, err
		}
	}
	if err := l.program("bin/busybox", path); err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(string(list)) {
		if applet == "busybox" {
			continue
		}
		if err := l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/false\n",
		"etc/group":  "root:x:0:\nnobody:x:65534:\n",
	} {
		if err := l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content)); err != nil {
			return nil, err
		}
	}
	return &l, nil
}

// interpreted tells whether an ELF program needs a dynamic loader.
func interpreted(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true, nil
		}
	}
	return false, nil
}

// layer is a file system as a tar archive.
type layer struct {
	buf bytes.Buffer
	tar *tar.Writer
}

func (l *layer) add(h *tar.Header, content []byte) error {
	if l.tar == nil {
		l.tar = tar.NewWriter(&l.buf)
	}
	h.Size = int64(len(content))
	if err := l.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := l.tar.Write(content)
	return err
}

func (l *layer) program(name, path string) error {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return err
	}
	return l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755}, data)
}

// archive makes an OCI image layout in a tar archive, of one layer and one image.
func archive(ref string, l *layer, config map[string]any) ([]byte, error) {
	if err := l.tar.Close(); err != nil {
		return nil, err
	}
	type descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	var out layer
	blob := func(media string, data []byte) (descriptor, error) {
		sum := sha256.Sum256(data)
		digest := hex.EncodeToString(sum[:])
		err := out.add(&tar.Header{Typeflag: tar.TypeReg, Name: "blobs/sha256/" + digest, Mode: 0o644}, data)
		return descriptor{MediaType: "application/vnd.oci.image." + media, Digest: "sha256:" + digest, Size: len(data)}, err
	}
	document := func(media string, v any) (descriptor, error) {
		data, err := json.Marshal(v)
		if err != nil {
			return descriptor{}, err
		}
		return blob(media, data)
	}
	files, err := blob("layer.v1.tar", l.buf.Bytes())
	if err != nil {
		return nil, err
	}
	settings, err := document("config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{files.Digest}},
	})
	if err != nil {
		return nil, err
	}
	image, err := document("manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": settings, "layers": []descriptor{files},
	})
	if err != nil {
		return nil, err
	}
	image.Annotations = map[string]string{"io.containerd.image.name": ref}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{image}})
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"index.json": index, "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)} {
		if err := out.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, data); err != nil {
			return nil, err
		}
	}
	if err := out.tar.Close(); err != nil {
		return nil, err
	}
	return out.buf.Bytes(), nil
}
