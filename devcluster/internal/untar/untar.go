// Package untar unpacks tars. It has no dependencies, because programs in small images use it.
package untar

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Unpack writes the directories and files of a tar into a directory that exists, and leaves out
// everything else, for example links. It fails at the first path that leads out of the directory,
// also by a link that is in the directory already.
func Unpack(dir string, from io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = writeFile(root, name, header.FileInfo().Mode().Perm(), r)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
