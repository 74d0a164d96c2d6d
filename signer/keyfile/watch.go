package keyfile

import (
	"context"

	"github.com/execproxy/execproxy/signer/watch"
)

// Watch calls changed when the files hold another pair than they did when Watch was called;
// use [Key.Watch] where a Key was loaded before. It blocks until ctx ends, and returns nil
// then.
//
// changed gets the new Key, or a nil Key and the reason why the files have none now: the
// old Key is to be kept then. Each reason comes once. A pair that is bad for less than two
// seconds (key and certificate are written one after the other) is not reported. changed is
// called from this goroutine; nothing is watched while it runs.
func Watch(ctx context.Context, keyPath, certPath string, changed func(*Key, error)) error {
	if certPath == "" {
		certPath = keyPath
	}
	keyPath, certPath = absolute(keyPath), absolute(certPath)
	k, err := Load(keyPath, certPath)
	if err != nil {
		changed(nil, err)
	}
	return watchPair(ctx, keyPath, certPath, k, err, changed)
}

// Watch calls changed when the files hold another pair than k, also if that happened before
// it was called. All else is as with the function [Watch]. It returns [ErrNoFiles] for a Key
// from [Parse], and for one without a chain.
func (k *Key) Watch(ctx context.Context, changed func(*Key, error)) error {
	if k.keyPath == "" {
		return ErrNoFiles
	}
	return watchPair(ctx, k.keyPath, k.certPath, k, nil, changed)
}

func watchPair(ctx context.Context, keyPath, certPath string, first *Key, known error, changed func(*Key, error)) error {
	return watch.Run(ctx, watch.Options[*Key]{
		Paths:   []string{keyPath, certPath},
		First:   first,
		Known:   known,
		Load:    func() (*Key, error) { return Load(keyPath, certPath) },
		Equal:   func(loaded, last *Key) bool { return loaded.Equal(last) },
		Changed: changed,
	})
}
