#!/usr/bin/env bash
# Three sites and a server, each a process of its own, on loopback with TLS and registered keys.
# Usage: examples/three_sites/run.sh [FOLDER]; everything that is made lies in FOLDER (new).
set -euo pipefail
folder=${1:-runs/three-sites}
port=${PORT:-8443}
fedshift=${FEDSHIFT:-fedshift}
sites=(scanner camera fax)

[ ! -e "$folder" ] || { echo "$folder exists: give another folder" >&2; exit 2; }
mkdir -p "$folder"
cd "$folder"
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; wait' EXIT

# The server makes a CA and its certificate ...
$fedshift certs server --host 127.0.0.1

# ... every site its own key, of which the server gets the public half ...
mkdir server/keys
for site in "${sites[@]}"; do
    mkdir "$site"
    cp server/ca.crt "$site/"
    $fedshift site init "$site/site.toml" --name "$site" --data shifted-digits \
        --server "127.0.0.1:$port" --ca ca.crt --key "$site.key" \
        --allow parameters --allow statistics
    cp "$site/$site.pub" server/keys/
done

# ... and connects: sites call the server, nobody calls a site.
for site in "${sites[@]}"; do
    $fedshift site run "$site/site.toml" 2>"$site/run.log" &
    started+=($!)
done

cat >server/deploy.toml <<TOML
name = "three-sites"
sites = ["scanner", "camera", "fax"]
method = "fedbn"
model = "small-cnn"
address = "127.0.0.1:$port"
out = "out"
min_sites = 2
seconds = 300
ca = "ca.crt"
certificate = "server.crt"
key = "server.key"
keys = "keys"

[protocol]
rounds = 6
epochs = 3
batch = 16
lr = 0.3
schedule = "cosine"
TOML
$fedshift deploy server/deploy.toml
