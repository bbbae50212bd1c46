package main

import "github.com/weirhq/weir/inbox"

type keyringCmd struct {
	Create keyringCreateCmd `cmd:"" help:"Make a new keyring file, readable for its owner only."`
}

type keyringCreateCmd struct {
	File string `arg:"" help:"Where to write it. An existing file is never touched."`
}

func (c *keyringCreateCmd) Run(o output) error {
	if err := inbox.CreateKeyring(c.File); err != nil {
		return err
	}
	o.printf("%s\nKeep a copy apart from the database: without it no stored payload can be read.\n", c.File)
	return nil
}
