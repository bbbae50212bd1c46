package vaulttest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Key is one transit key.
type Key struct {
	// Type is as Vault names it. Keys of other types than aes256-gcm96 are described and refuse to encrypt.
	Type string
	// Derived keys need the context of each call and bind it; others ignore it.
	Derived bool
	// MinDecryption and MinEncryption are the lowest versions that may be used.
	MinDecryption, MinEncryption int

	versions [][]byte
}

// NewKey is a key with one version.
func NewKey(derived bool) *Key {
	k := &Key{Type: "aes256-gcm96", Derived: derived, MinDecryption: 1}
	k.rotate()
	return k
}

func (k *Key) rotate() {
	raw := make([]byte, 32)
	rand.Read(raw)
	k.versions = append(k.versions, raw)
}

// item is one thing to encrypt, to decrypt or to wrap anew.
type item struct {
	Plaintext  string `json:"plaintext"`
	Ciphertext string `json:"ciphertext"`
	Context    []byte `json:"context"`
}

// transit answers for the engine mounted at transit; what is not its own is false.
func (s *Server) transit(method, path string, text []byte) (reply, bool) {
	rest, ok := strings.CutPrefix(path, "transit/")
	operation, name, _ := strings.Cut(rest, "/")
	name, sub, _ := strings.Cut(name, "/")
	if !ok || name == "" {
		return reply{}, false
	}
	key := s.Keys["transit/"+name]
	write := method == "POST" || method == "PUT"
	switch {
	case operation == "keys" && sub == "" && method == "GET":
		if key == nil {
			return reply{404, map[string]any{"errors": []string{}}}, true
		}
		return key.describe(), true
	case operation == "keys" && sub == "rotate" && write:
		if key == nil {
			return refuse(400, "key not found"), true
		}
		key.rotate()
		return key.describe(), true
	case operation == "keys" && sub == "config" && write:
		if key == nil {
			return refuse(400, "no existing key named "+name+" could be found"), true
		}
		return key.configure(text), true
	case sub != "" || !write:
		return refuse(405, "unsupported operation"), true
	case operation != "encrypt" && operation != "decrypt" && operation != "rewrap":
		return reply{}, false
	case key == nil:
		return refuse(400, "encryption key not found"), true
	}
	return key.use(operation, text), true
}

func (k *Key) describe() reply {
	return reply{200, map[string]any{"data": map[string]any{
		"type": k.Type, "derived": k.Derived, "latest_version": len(k.versions), "min_decryption_version": k.MinDecryption,
		"min_encryption_version": k.MinEncryption, "min_available_version": 0, "supports_encryption": true, "supports_decryption": true,
	}}}
}

func (k *Key) configure(text []byte) reply {
	var body struct {
		MinDecryption int `json:"min_decryption_version"`
	}
	switch err := json.Unmarshal(text, &body); {
	case err != nil:
		return refuse(400, "failed to parse JSON input")
	case body.MinDecryption > len(k.versions):
		return refuse(400, fmt.Sprintf("cannot set min decryption version of %d, latest key version is %d", body.MinDecryption, len(k.versions)))
	case k.MinEncryption > 0 && k.MinEncryption < body.MinDecryption:
		return refuse(400, "cannot set min encryption/decryption values")
	}
	k.MinDecryption = max(body.MinDecryption, 1)
	return k.describe()
}

func (k *Key) use(operation string, text []byte) reply {
	var body struct {
		item
		Batch []item `json:"batch_input"`
	}
	if json.Unmarshal(text, &body) != nil {
		return refuse(400, "failed to parse JSON input")
	}
	switch operation {
	case "encrypt":
		ciphertext, err := k.encrypt(body.Plaintext, body.Context)
		if err != nil {
			return refuse(400, err.Error())
		}
		return reply{200, map[string]any{"data": map[string]any{"ciphertext": ciphertext, "key_version": len(k.versions)}}}
	case "decrypt":
		plaintext, err := k.decrypt(body.Ciphertext, body.Context)
		if err != nil {
			return refuse(400, err.Error())
		}
		return reply{200, map[string]any{"data": map[string]any{"plaintext": plaintext}}}
	}
	results := []map[string]any{}
	for _, it := range body.Batch {
		plaintext, err := k.decrypt(it.Ciphertext, it.Context)
		if err != nil {
			results = append(results, map[string]any{"error": err.Error()})
			continue
		}
		ciphertext, err := k.encrypt(plaintext, it.Context)
		if err != nil {
			results = append(results, map[string]any{"error": err.Error()})
			continue
		}
		results = append(results, map[string]any{"ciphertext": ciphertext, "key_version": len(k.versions)})
	}
	return reply{200, map[string]any{"data": map[string]any{"batch_results": results}}}
}

func (k *Key) aead(version int, context []byte) (cipher.AEAD, error) {
	raw := k.versions[version-1]
	switch {
	case k.Type != "aes256-gcm96":
		return nil, fmt.Errorf("message encryption not supported for key type %s", k.Type)
	case k.Derived && len(context) == 0:
		return nil, errors.New("missing 'context' for key derivation; the key was created using a derived key, which means additional, per-request information must be included in order to perform operations with the key")
	case k.Derived:
		mac := hmac.New(sha256.New, raw)
		mac.Write(context)
		raw = mac.Sum(nil)
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (k *Key) encrypt(plaintext string, context []byte) (string, error) {
	plain, err := base64.StdEncoding.DecodeString(plaintext)
	if err != nil {
		return "", err
	}
	version := len(k.versions)
	aead, err := k.aead(version, context)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	return fmt.Sprintf("vault:v%d:%s", version, base64.StdEncoding.EncodeToString(aead.Seal(nonce, nonce, plain, nil))), nil
}

func (k *Key) decrypt(ciphertext string, context []byte) (string, error) {
	rest, ok := strings.CutPrefix(ciphertext, "vault:v")
	number, text, parted := strings.Cut(rest, ":")
	version, err := strconv.Atoi(number)
	switch {
	case ciphertext == "":
		return "", errors.New("missing ciphertext to decrypt")
	case !ok:
		return "", errors.New("invalid ciphertext: no prefix")
	case !parted:
		return "", errors.New("invalid ciphertext: wrong number of fields")
	case err != nil || version < 0:
		return "", errors.New("invalid ciphertext: version number could not be decoded")
	case version > len(k.versions):
		return "", errors.New("invalid ciphertext: version is too new")
	case max(version, 1) < k.MinDecryption:
		return "", errors.New("ciphertext or signature version is disallowed by policy (too old)")
	}
	sealed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", errors.New("invalid ciphertext: could not decode base64")
	}
	aead, err := k.aead(max(version, 1), context)
	if err != nil {
		return "", err
	}
	if len(sealed) < aead.NonceSize() {
		return "", errors.New("invalid ciphertext length")
	}
	plain, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
	if err != nil {
		return "", errors.New("cipher: message authentication failed")
	}
	return base64.StdEncoding.EncodeToString(plain), nil
}
