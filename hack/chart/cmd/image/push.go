package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// push writes an index and its images to the registry of their name.
func push(ctx context.Context, tag name.Tag, index v1.ImageIndex) error {
	err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("pushing %s: %s%w", tag, advice(tag, err), err)
	}
	return nil
}

// advice says what a person can do about an error of a registry, if that is known.
func advice(tag name.Tag, err error) string {
	var answer *transport.Error
	switch {
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return fmt.Sprintf("log in with docker login %[1]s or podman login %[1]s, as a user who may push there: ", tag.RegistryStr())
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the registry has no HTTPS; if it may be trusted without, use -insecure: "
	}
	return ""
}
