package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"sigs.k8s.io/yaml"
)

// file is one of an archive.
type file struct {
	name, path string
	mode       int64
}

// pack writes an archive with the time of the last commit, and without owners.
func (r *release) pack(name string, files []file) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", name, err)
		}
	}()
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, out.Close()) }()
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		if err := r.add(archive, f); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

func (r *release) add(archive *tar.Writer, f file) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: info.Size(), ModTime: r.made, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err = io.Copy(archive, in)
	return err
}

// krew writes the manifest by which krew installs kubectl-atoll.
func (r *release) krew(context.Context) error {
	var platforms []map[string]any
	for _, p := range r.platforms() {
		sum, err := r.sum(r.archives[p])
		if err != nil {
			return err
		}
		bin := "kubectl-atoll"
		if p.os == "windows" {
			bin += ".exe"
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"os": p.os, "arch": p.arch}},
			"uri":      fmt.Sprintf("%s/v%s/%s", r.url, r.version, r.archives[p]), "sha256": sum, "bin": bin,
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": map[string]any{"name": "atoll"},
		"spec": map[string]any{
			"version": "v" + r.version, "homepage": "https://github.com/atoll-k8s/atoll", "platforms": platforms,
			"shortDescription": "Why pods are where they are, and what will happen",
			"description": "Tells why a pod is in its group of nodes or what it waits for, what will happen to which\n" +
				"pods when policies, groups or workloads are applied, and how everything of Atoll is.\nIt only reads, with your own rights.\n",
		},
	})
	if err != nil {
		return fmt.Errorf("encoding the manifest for krew: %w", err)
	}
	return r.write("atoll.krew.yaml", text)
}

// describe keeps the modules of a program for the SBOM.
func (r *release) describe(program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading the modules of %s: %w", program, err)
	}
	if r.modules == nil {
		r.modules = map[string]string{}
	}
	r.modules["std"] = info.GoVersion
	for _, m := range info.Deps {
		if m.Replace == nil { // replaced are Atoll's own
			r.modules[m.Path] = m.Version
		}
	}
	return nil
}

// sbom writes which modules the programs have, as CycloneDX.
func (r *release) sbom(context.Context) error {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.made.Format(time.RFC3339),
		Component: &cdx.Component{Type: cdx.ComponentTypeApplication, Name: "atoll", Version: r.version, BOMRef: "atoll"},
	}
	components := []cdx.Component{}
	for _, path := range slices.Sorted(maps.Keys(r.modules)) {
		reference := fmt.Sprintf("pkg:golang/%s@%s", path, r.modules[path])
		components = append(components, cdx.Component{Type: cdx.ComponentTypeLibrary, Name: path, Version: r.modules[path], PackageURL: reference, BOMRef: reference})
	}
	bom.Components = &components
	out, err := os.Create(filepath.Join(r.out, "atoll-"+r.version+".cdx.json"))
	if err != nil {
		return fmt.Errorf("writing the SBOM: %w", err)
	}
	err = cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	if err := cmp.Or(err, out.Close()); err != nil {
		return fmt.Errorf("writing the SBOM: %w", err)
	}
	return nil
}
