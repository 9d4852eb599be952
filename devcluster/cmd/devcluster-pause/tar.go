package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster/internal/untar"
)

// archive does what kubectl cp asks of the program tar:
//
//	tar cf - <path>                 writes a file, or a directory with its files, to out
//	tar -xmf - [-C <directory>]     reads these from in, into a directory
func archive(args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 3 && args[0] == "cf" && args[1] == "-":
		return pack(args[2], out)
	case len(args) == 2 && args[0] == "-xmf" && args[1] == "-":
		return untar.Unpack(".", in)
	case len(args) == 4 && args[0] == "-xmf" && args[1] == "-" && args[2] == "-C":
		return untar.Unpack(args[3], in)
	default:
		return fmt.Errorf("tar %s: only cf - <path> and -xmf - [-C <directory>] are known", strings.Join(args, " "))
	}
}

func pack(path string, out io.Writer) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			return err
		}
		header, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		header.Name = strings.TrimPrefix(path, "/") // as tar does
		if err := w.WriteHeader(header); err != nil || info.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(w, file)
		return err
	})
	return errors.Join(err, w.Close())
}
