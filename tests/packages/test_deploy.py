"""deploy/: what the image, compose and Kubernetes would run is what this build takes, and their files are what their schemas say."""

import json
import os
import re
import shlex
import subprocess
import time

import jsonschema
import kubernetes_validate
import pytest
import throwaway
import yaml
from throwaway import run

KUBERNETES = "1.33"
# What is no part of Kubernetes itself: as much of these schemas as the files use.
OURS = {
    "keda.sh/v1alpha1 ScaledObject": {
        "required": ["scaleTargetRef", "triggers"],
        "properties": {
            "scaleTargetRef": {"required": ["name"], "type": "object"},
            "minReplicaCount": {"type": "integer"},
            "maxReplicaCount": {"type": "integer"},
            "pollingInterval": {"type": "integer"},
            "cooldownPeriod": {"type": "integer"},
            "advanced": {"type": "object"},
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "required": ["type", "metadata"],
                    "properties": {"metadata": {"additionalProperties": {"type": "string"}}},
                },
            },
        },
        "additionalProperties": False,
    },
    "inference.networking.k8s.io/v1 InferencePool": {
        "required": ["selector", "targetPorts", "endpointPickerRef"],
        "properties": {
            "selector": {"required": ["matchLabels"], "additionalProperties": False, "properties": {"matchLabels": {}}},
            "targetPorts": {
                "type": "array",
                "minItems": 1,
                "items": {"required": ["number"], "additionalProperties": False, "properties": {"number": {}}},
            },
            "endpointPickerRef": {
                "required": ["name", "port"],
                "properties": {
                    "group": {},
                    "kind": {},
                    "name": {},
                    "failureMode": {},
                    "port": {"required": ["number"]},
                },
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
    "gateway.networking.k8s.io/v1 HTTPRoute": {
        "required": ["rules"],
        "properties": {
            "parentRefs": {"type": "array", "items": {"required": ["name"]}},
            "rules": {"type": "array", "items": {"required": ["backendRefs"]}},
        },
        "additionalProperties": False,
    },
}


def documents(root):
    for file in sorted((root / "deploy/kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield file.name, document


def test_kubernetes_files_are_what_their_schemas_say(root):
    kinds = set()
    for file, document in documents(root):
        kind = f"{document['apiVersion']} {document['kind']}"
        kinds.add(kind.split()[-1])
        if kind in OURS:
            jsonschema.validate(document["spec"], OURS[kind])
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert kinds >= {
        "Deployment",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "ScaledObject",
        "InferencePool",
        "NetworkPolicy",
    }


def test_the_schemas_refuse_what_is_wrong(root):
    """A misspelt field, in one of each."""
    for _, document in documents(root):
        kind = f"{document['apiVersion']} {document['kind']}"
        if "spec" not in document:
            continue
        document["spec"]["replicaz"] = 1
        with pytest.raises(Exception, match="replicaz|dditional"):
            if kind in OURS:
                jsonschema.validate(document["spec"], OURS[kind])
            else:
                kubernetes_validate.validate(document, KUBERNETES, strict=True)


def accepts(build, words, env, tmp_path):
    """The program takes this command line in this environment: each flag and each RADISH_ variable is one of its own."""
    words = [w.replace("/models/model.gguf", "smollm2") for w in words]
    r = subprocess.run(
        [build / "radish", *words, "--print-config"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RADISH_CONFIG": ""} | env,
    )
    assert r.returncode == 0 and "RADISH_" not in r.stderr, (words, r.stderr)
    return r.stdout


def test_servers_take_what_kubernetes_gives_them(root, build, tmp_path):
    deployments = {d["metadata"]["name"]: d for _, d in documents(root) if d["kind"] == "Deployment"}
    (container,) = deployments["radish"]["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value", "redis://x:1/0") for e in container["env"] if e["name"].startswith("RADISH_")}
    said = accepts(build, [a.replace("$(POD_IP)", "10.0.0.1") for a in container["args"]], env, tmp_path)
    grace = deployments["radish"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    of = {name: int(value) for name, value in re.findall(r"^(drain|drain-wait) = (\d+)", said, re.M)}
    assert of["drain"] + of["drain-wait"] < grace
    paths = [container[p]["httpGet"]["path"] for p in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert paths == ["/health/ready", "/health/ready", "/health/live"]
    for d in deployments.values():
        pod = d["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for c in pod["containers"]:
            assert (
                c["securityContext"]["readOnlyRootFilesystem"] and not c["securityContext"]["allowPrivilegeEscalation"]
            )


def test_servers_take_what_compose_gives_them(root, build, tmp_path):
    text = (root / "deploy/container/compose.yaml").read_text()
    text = re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", lambda m: "smollm2" if m[1] == "RADISH_MODEL" else "/x", text)
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"radish-a", "radish-b", "router", "valkey"}
    for name in ("radish-a", "radish-b"):
        accepts(build, services[name]["command"], services[name]["environment"], tmp_path)
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]


def steps(root):
    """[(instruction, rest)] of the image's recipe, lines joined."""
    text = re.sub(r"\\\n", " ", (root / "deploy/container/Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def stages(root):
    out = []
    for name, rest in steps(root):
        if name == "FROM":
            out.append([])
        out[-1].append((name, rest))
    return out


def test_the_image_has_what_the_program_is_linked_with(root, build):
    last = stages(root)[-1]
    packages = set(re.findall(r"\blib[a-z0-9.+-]+", " ".join(rest for name, rest in last if name == "RUN")))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", build / "radish"]))
    for library in needed:
        owner = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True).stdout
        owners = {line.split(":")[0] for line in owner.splitlines() if "x86_64" in line or "aarch64" in line}
        if owners and not owners & {"libc6", "libgcc-s1", "libstdc++6"}:
            assert owners & packages, (library, owners)
    assert ("USER", "65532:65532") in last
    assert [name for name, _ in last].index("USER") > max(i for i, (name, _) in enumerate(last) if name == "RUN")


def test_the_program_runs_as_in_the_image(root, build, model):
    """The last stage's steps, in a root of its own: a user without rights, a root that cannot be written, the recipe's
    environment; it answers, and ends as it is told."""
    last = stages(root)[-1]
    env = " ".join(rest for name, rest in last if name == "ENV")
    made = [rest for name, rest in last if name == "RUN" and rest.startswith("install ")]
    (user,) = [rest for name, rest in last if name == "USER"]
    with throwaway.machine([build / "radish", model]) as m:
        answer = m(f"""
            install -m 755 radish /usr/bin/radish
            mkdir -p /models && cp {model.name} /models/model.gguf && chmod -R a+rX /models
            {" && ".join(made)}
            mount -t tmpfs tmpfs /var/lib/radish -o uid=65532,mode=700
            mount -t tmpfs tmpfs /var/cache/radish -o uid=65532,mode=700
            mount -o remount,ro /
            export {env}
            id={user.split(":")[0]}
            setpriv --reuid $id --regid $id --clear-groups --no-new-privs /usr/bin/radish serve /models/model.gguf \\
                --port 8123 --kv-tokens 1024 >/tmp/log 2>&1 & pid=$!
            trap "kill -9 $pid 2>/dev/null || true" EXIT
            for i in $(seq 300); do
                curl -sf http://127.0.0.1:8123/health/ready && break
                kill -0 $pid || {{ cat /tmp/log; exit 1; }}
                sleep 0.1
            done
            ! touch /usr/bin/x 2>/dev/null
            grep -q "^Uid:.$id" /proc/$pid/status
            curl -sf -H 'Content-Type: application/json' -d '{{"prompt": "a b c", "max_tokens": 3}}' \\
                http://127.0.0.1:8123/v1/completions
            kill -TERM $pid; wait $pid
        """)
    assert '"status":"ok"' in answer and '"completion_tokens":3' in answer


@pytest.mark.skipif(not os.environ.get("RADISH_LONG"), reason="builds for minutes")
def test_the_image_is_built_by_its_steps(root):
    """The first stage's commands, on a machine on which nothing that is written stays; packages are there already."""
    first = stages(root)[0]
    tree = root.parent / f"radish-{int(time.time())}.tar"
    run(["git", "archive", "-o", tree, "HEAD"], cwd=root)
    try:
        with throwaway.machine([tree]) as m:
            commands = [rest for name, rest in first if name == "RUN" and "apt-get" not in rest]
            built = m(
                f"mkdir /src && tar -xf {tree.name} -C /src && cd /src && {' && '.join(commands)} && /out/usr/bin/radish --version"
            )
        assert "radish" in built
    finally:
        tree.unlink()


def test_healthchecks_are_shell(root):
    compose = yaml.safe_load((root / "deploy/container/compose.yaml").read_text().replace("${", "").replace(":?", " "))
    words = compose["services"]["radish-a"]["healthcheck"]["test"]
    assert words[:3] == ["CMD", "bash", "-c"]
    run(["bash", "-n", "-c", words[3]])
    assert shlex.split(words[3]) and json.dumps(words)
