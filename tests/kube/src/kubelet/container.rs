//! From a container of a pod to a command line of this machine.

use super::{Shared, volumes};
use crate::control::write_kubeconfig;
use crate::daemon::Spec;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::ResourceExt;
use kube::api::Api;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Everything that a start needs; an error is the message of `CreateContainerConfigError`.
pub(super) async fn command(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    program: &Path,
    address: IpAddr,
    folder: &Path,
) -> Result<Spec> {
    let folders = volumes::prepare(shared, pod, &folder.join("volumes")).await?;
    let mut mounts: Vec<(String, PathBuf)> = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let base = folders
            .get(&mount.name)
            .with_context(|| format!("mount of unknown volume {}", mount.name))?;
        let place = mount
            .sub_path
            .as_deref()
            .map_or_else(|| base.clone(), |below| base.join(below));
        mounts.push((mount.mount_path.trim_end_matches('/').to_owned(), place));
    }
    // The longest first: /data/logs is not /data.
    mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));

    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    ensure!(
        container.env_from.iter().flatten().next().is_none(),
        "the stand-in does not support envFrom"
    );
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => expand(value, &variables),
            (None, Some(source)) => value_from(shared, pod, address, source).await?,
            (None, None) => String::new(),
        };
        variables.insert(variable.name.clone(), value);
    }
    let local = |text: &str| localise(text, address, &mounts);
    let given = container
        .command
        .iter()
        .flatten()
        .skip(1)
        .chain(container.args.iter().flatten());
    let args: Vec<String> = given.map(|arg| local(&expand(arg, &variables))).collect();
    let mut env: Vec<(String, String)> = variables
        .iter()
        .map(|(name, value)| (name.clone(), local(value)))
        .collect();
    if let Some((_, secrets)) = mounts.iter().find(|(path, _)| path == TOKEN_FOLDER) {
        let kubeconfig = folder.join("kubeconfig");
        write_kubeconfig(
            &kubeconfig,
            &shared.url,
            &shared.certificate,
            &format!("tokenFile: {}", secrets.join("token").display()),
        )?;
        env.push(("KUBECONFIG".to_owned(), kubeconfig.display().to_string()));
    }

    // In a mount namespace of its own, with the bed's hosts file: the names of pods resolve. unshare and sh replace themselves.
    let mut wrapped = vec!["--mount".to_owned()];
    if !rustix::process::geteuid().is_root() {
        wrapped.extend(["--user".to_owned(), "--map-root-user".to_owned()]);
    }
    wrapped.extend(
        [
            "--",
            "/bin/sh",
            "-c",
            "mount --bind \"$0\" /etc/hosts && exec setpriv --pdeathsig KILL -- \"$@\"",
        ]
        .map(ToOwned::to_owned),
    );
    wrapped.push(shared.names.hosts().display().to_string());
    wrapped.push(program.display().to_string());
    wrapped.extend(args);
    Ok(Spec {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        program: tools::on_path("unshare")?,
        args: wrapped,
        env,
        folder: folder.to_owned(),
        log: folder.with_file_name(format!("{}.log", pod.name_any())),
    })
}

/// `$(NAME)` of a known variable; `$$` is a dollar; anything else stays, as the API describes it.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            result.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')'));
        if let Some((value, after)) = reference.and_then(|(name, after)| Some((variables.get(name)?, after)))
        {
            result.push_str(value);
            rest = after;
        } else {
            result.push('$');
            rest = &rest[1..];
        }
    }
    result + rest
}

/// Puts the pod's address for `0.0.0.0`, and folders of this machine for mount paths.
fn localise(text: &str, address: IpAddr, mounts: &[(String, PathBuf)]) -> String {
    let mut text = text.replace("0.0.0.0", &address.to_string());
    for (path, folder) in mounts {
        let mut result = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(path.as_str()) {
            let (before, found) = rest.split_at(at);
            let after = &found[path.len()..];
            let starts = before.is_empty() || before.ends_with(['=', ',', ':', '@']);
            let ends = after.is_empty() || after.starts_with(['/', ',', ':']);
            result.push_str(before);
            result.push_str(if starts && ends {
                folder.to_str().unwrap_or(path)
            } else {
                path
            });
            rest = after;
        }
        result.push_str(rest);
        text = result;
    }
    text
}

/// A field of the downward API.
pub(super) fn field(pod: &Pod, address: Option<IpAddr>, path: &str) -> Result<String> {
    let keyed = |prefix: &str, map: &BTreeMap<String, String>| {
        let key = path
            .strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")?;
        Some(map.get(key).cloned().unwrap_or_default())
    };
    Ok(match path {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => pod.namespace().unwrap_or_default(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "spec.nodeName" => crate::provisioner::NODE.to_owned(),
        "spec.serviceAccountName" => pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.podIP" | "status.podIPs" => address.map(|address| address.to_string()).unwrap_or_default(),
        "status.hostIP" => "127.0.0.1".to_owned(),
        _ => keyed("metadata.labels", pod.labels())
            .or_else(|| keyed("metadata.annotations", pod.annotations()))
            .with_context(|| format!("the stand-in does not know the field {path}"))?,
    })
}

async fn value_from(shared: &Shared, pod: &Pod, address: IpAddr, source: &EnvVarSource) -> Result<String> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(wanted) = &source.field_ref {
        return field(pod, Some(address), &wanted.field_path);
    }
    if let Some(wanted) = &source.secret_key_ref {
        let secret = Api::<Secret>::namespaced(shared.client.clone(), &namespace)
            .get_opt(&wanted.name)
            .await?;
        let value = secret.and_then(|secret| secret.data?.remove(&wanted.key));
        return match value {
            Some(bytes) => Ok(String::from_utf8(bytes.0)?),
            None if wanted.optional == Some(true) => Ok(String::new()),
            None => bail!(
                "couldn't find key {} in Secret {namespace}/{}",
                wanted.key,
                wanted.name
            ),
        };
    }
    if let Some(wanted) = &source.config_map_key_ref {
        let map = Api::<ConfigMap>::namespaced(shared.client.clone(), &namespace)
            .get_opt(&wanted.name)
            .await?;
        let value = map.and_then(|map| map.data?.remove(&wanted.key));
        return match value {
            Some(value) => Ok(value),
            None if wanted.optional == Some(true) => Ok(String::new()),
            None => bail!(
                "couldn't find key {} in ConfigMap {namespace}/{}",
                wanted.key,
                wanted.name
            ),
        };
    }
    bail!("the stand-in does not support this source of a variable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_the_api_says() {
        let variables = BTreeMap::from([("POD".to_owned(), "db-0".to_owned())]);
        assert_eq!(
            expand("$(POD).db:$(PORT) $$(POD) $x", &variables),
            "db-0.db:$(PORT) $(POD) $x"
        );
    }

    #[test]
    fn only_whole_mount_paths_become_folders() {
        let mounts = [
            ("/data/logs".to_owned(), PathBuf::from("/m/logs")),
            ("/data".to_owned(), PathBuf::from("/m/data")),
        ];
        let local = |text: &str| localise(text, IpAddr::from([127, 64, 0, 1]), &mounts);
        assert_eq!(local("--dir=/data"), "--dir=/m/data");
        assert_eq!(local("/data/logs/x"), "/m/logs/x");
        assert_eq!(local("/database"), "/database");
        assert_eq!(local("http://0.0.0.0:9200/data"), "http://127.64.0.1:9200/data");
        assert_eq!(local("/x/data"), "/x/data");
    }
}
