//go:build !linux

package realnode

import "errors"

// RemoveGroups removes nothing: there are no control groups.
func RemoveGroups(string) error { return nil }

// CanMakeGroups returns an error: there are no control groups.
func CanMakeGroups() error { return errors.New("this system has none") }

// RaiseInstances raises nothing: there is no inotify.
func RaiseInstances() (string, error) { return "", nil }

// CanUseNFT returns an error: there is no nftables.
func CanUseNFT() error { return errors.New("this system has no nftables") }
