// Command image makes the image of atoll-manager and atoll-hub for each platform, and an index of them. It
// needs neither Docker nor another engine for containers.
//
//	make image                                                          # into a tar file in dist/
//	make image IMAGE=registry.example/atoll-manager:0.1.0 ARGS=-push    # into a registry
//	make image ARGS='-platforms linux/arm64'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// architectures are those of GOARCH that images are made for, in their order in an index.
var architectures = []string{"amd64", "arm64"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	source        string
	tag           name.Tag
	architectures []string
	// out is the file to write, "" for none.
	out  string
	push bool
}

func run(ctx context.Context, args []string, log io.Writer) error {
	o, err := parse(args, log)
	if err != nil {
		return err
	}
	made, err := build(ctx, o.source, o.architectures, log)
	if err != nil {
		return err
	}
	index, err := images.Index(made...)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("reading the digest of the index: %w", err)
	}
	if o.out != "" {
		if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
			return fmt.Errorf("writing the image: %w", err)
		}
		if err := images.Save(o.out, map[string][]v1.Image{o.tag.String(): made}); err != nil {
			return err
		}
		fmt.Fprintf(log, "wrote %s: %s, %s\n", o.out, o.tag, digest)
	}
	if o.push {
		if err := push(ctx, o.tag, index); err != nil {
			return err
		}
		fmt.Fprintf(log, "pushed %s@%s\n", o.tag, digest)
	}
	return nil
}

func parse(args []string, log io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.StringVar(&o.source, "source", "../..", "directory of Atoll's source")
	image := fs.String("image", "", "name of the image, IMAGE of make: [registry/]repository:tag")
	platforms := fs.String("platforms", strings.Join(known(), ","), "platforms of the image, separated by commas")
	fs.StringVar(&o.out, "o", "", "tar file to write, relative to the source; unset means one in dist/, and none with -push")
	fs.BoolVar(&o.push, "push", false, "push the image to its registry, with the credentials that docker login or podman login has stored")
	insecure := fs.Bool("insecure", false, "let -push use plain HTTP if the registry has no HTTPS; registries on this machine and with a private address need no flag")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("reading the command line: %q is not a flag", fs.Arg(0))
	}
	var err error
	if o.tag, err = parseName(*image, o.push, *insecure); err != nil {
		return o, err
	}
	if o.architectures, err = parsePlatforms(*platforms); err != nil {
		return o, err
	}
	if o.out == "" && !o.push {
		o.out = filepath.Join("dist", path.Base(o.tag.RepositoryStr())+"-"+o.tag.TagStr()+".tar")
	}
	if o.out != "" && !filepath.IsAbs(o.out) {
		o.out = filepath.Join(o.source, o.out)
	}
	return o, nil
}

// parseName reads the name of an image. To push it, the name needs a registry: one that was left
// out by mistake must not become docker.io.
func parseName(image string, push, insecure bool) (name.Tag, error) {
	if strings.Contains(image, "@") {
		return name.Tag{}, fmt.Errorf("reading IMAGE %q: a digest follows from the content of the image: name a tag, such as registry.example/atoll-manager:0.1.0", image)
	}
	opts := []name.Option{name.WithDefaultTag("")}
	if insecure {
		opts = append(opts, name.Insecure)
	}
	tag, err := name.NewTag(image, opts...)
	if err != nil {
		return name.Tag{}, fmt.Errorf("reading IMAGE %q: it is not of the form [registry/]repository:tag: %w", image, err)
	}
	if tag.TagStr() == "" {
		return name.Tag{}, fmt.Errorf("reading IMAGE %q: it has no tag: add one, such as :0.1.0", image)
	}
	explicit, err := name.NewTag(image, name.WithDefaultRegistry(""))
	if err != nil {
		return name.Tag{}, fmt.Errorf("reading IMAGE %q: %w", image, err)
	}
	if push && explicit.RegistryStr() == "" {
		return name.Tag{}, fmt.Errorf("reading IMAGE %q: -push needs its registry, such as registry.example/%s; for Docker Hub write docker.io/%s", image, image, image)
	}
	return tag, nil
}

// known are the platforms that images are made for.
func known() []string {
	var out []string
	for _, architecture := range architectures {
		out = append(out, "linux/"+architecture)
	}
	return out
}

// parsePlatforms returns the architectures of a list of platforms, each once and in the order
// of architectures, so that the same platforms give the same index.
func parsePlatforms(list string) ([]string, error) {
	wanted := strings.Split(list, ",")
	for _, platform := range wanted {
		if !slices.Contains(known(), platform) {
			return nil, fmt.Errorf("reading -platforms: %q is not one of %s", platform, strings.Join(known(), ", "))
		}
	}
	var out []string
	for _, architecture := range architectures {
		if slices.Contains(wanted, "linux/"+architecture) {
			out = append(out, architecture)
		}
	}
	return out, nil
}
