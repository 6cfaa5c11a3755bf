//! A pod's volumes as folders of this machine.

use super::Shared;
use super::container::field;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    ServiceAccount, Volume,
};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes (or refreshes) the folder of each volume and answers it by the volume's name.
pub(super) async fn prepare(shared: &Shared, pod: &Pod, root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut folders = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let folder = one(shared, pod, volume, &root.join(&volume.name))
            .await
            .with_context(|| format!("volume {}", volume.name))?;
        folders.insert(volume.name.clone(), folder);
    }
    Ok(folders)
}

async fn one(shared: &Shared, pod: &Pod, volume: &Volume, folder: &Path) -> Result<PathBuf> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(claim) = &volume.persistent_volume_claim {
        return claimed(shared, &namespace, &claim.claim_name).await;
    }
    fs::create_dir_all(folder)?;
    if volume.empty_dir.is_some() {
        return Ok(folder.to_owned());
    }
    if let Some(source) = &volume.secret {
        let name = source
            .secret_name
            .as_deref()
            .context("a secret volume without a name")?;
        write_secret(
            shared,
            &namespace,
            name,
            source.items.as_deref(),
            source.optional == Some(true),
            folder,
        )
        .await?;
    } else if let Some(source) = &volume.config_map {
        write_config_map(
            shared,
            &namespace,
            &source.name,
            source.items.as_deref(),
            source.optional == Some(true),
            folder,
        )
        .await?;
    } else if let Some(source) = &volume.downward_api {
        write_downward(pod, source.items.as_deref(), folder)?;
    } else if let Some(source) = &volume.projected {
        for part in source.sources.iter().flatten() {
            if let Some(part) = &part.secret {
                write_secret(
                    shared,
                    &namespace,
                    &part.name,
                    part.items.as_deref(),
                    part.optional == Some(true),
                    folder,
                )
                .await?;
            } else if let Some(part) = &part.config_map {
                write_config_map(
                    shared,
                    &namespace,
                    &part.name,
                    part.items.as_deref(),
                    part.optional == Some(true),
                    folder,
                )
                .await?;
            } else if let Some(part) = &part.downward_api {
                write_downward(pod, part.items.as_deref(), folder)?;
            } else if let Some(part) = &part.service_account_token {
                let token = token(shared, pod, part.expiration_seconds).await?;
                fs::write(folder.join(&part.path), token)?;
            } else {
                bail!("the stand-in does not support this projected source");
            }
        }
    } else {
        bail!("the stand-in does not support this kind of volume");
    }
    Ok(folder.to_owned())
}

/// The folder behind a bound claim.
async fn claimed(shared: &Shared, namespace: &str, claim: &str) -> Result<PathBuf> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(shared.client.clone(), namespace);
    let volume = claims
        .get(claim)
        .await?
        .spec
        .and_then(|spec| spec.volume_name)
        .context("the claim is not bound")?;
    let spec = Api::<PersistentVolume>::all(shared.client.clone())
        .get(&volume)
        .await?
        .spec
        .context("a volume without a spec")?;
    let path = spec
        .local
        .map(|local| local.path)
        .or_else(|| spec.host_path.map(|host| host.path));
    let path = PathBuf::from(path.with_context(|| format!("{volume} is neither local nor hostPath"))?);
    if !path.is_dir() {
        bail!("the folder of {volume} is not there");
    }
    Ok(path)
}

async fn write_secret(
    shared: &Shared,
    namespace: &str,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    folder: &Path,
) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), namespace);
    match secrets.get_opt(name).await? {
        Some(secret) => write(
            secret
                .data
                .into_iter()
                .flatten()
                .map(|(key, value)| (key, value.0))
                .collect(),
            items,
            folder,
        ),
        None if optional => Ok(()),
        None => bail!("secret \"{name}\" not found"),
    }
}

async fn write_config_map(
    shared: &Shared,
    namespace: &str,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    folder: &Path,
) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(shared.client.clone(), namespace);
    let Some(map) = maps.get_opt(name).await? else {
        if optional {
            return Ok(());
        }
        bail!("configmap \"{name}\" not found");
    };
    let texts = map
        .data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.into_bytes()));
    let binaries = map
        .binary_data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.0));
    write(texts.chain(binaries).collect(), items, folder)
}

fn write(entries: BTreeMap<String, Vec<u8>>, items: Option<&[KeyToPath]>, folder: &Path) -> Result<()> {
    let put = |path: &str, bytes: &[u8]| -> Result<()> {
        let place = folder.join(path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        // Renamed into place: a process that reads while a restart refreshes sees the old or the new bytes.
        let unfinished = place.with_extension("unfinished");
        fs::write(&unfinished, bytes)?;
        Ok(fs::rename(unfinished, place)?)
    };
    match items {
        None => entries.iter().try_for_each(|(key, bytes)| put(key, bytes)),
        Some(items) => items.iter().try_for_each(|KeyToPath { key, path, mode: _ }| {
            put(
                path,
                entries
                    .get(key)
                    .with_context(|| format!("references non-existent key: {key}"))?,
            )
        }),
    }
}

fn write_downward(pod: &Pod, items: Option<&[DownwardAPIVolumeFile]>, folder: &Path) -> Result<()> {
    for item in items.into_iter().flatten() {
        let source = item
            .field_ref
            .as_ref()
            .context("the stand-in supports fieldRef only")?;
        fs::write(folder.join(&item.path), field(pod, None, &source.field_path)?)?;
    }
    Ok(())
}

async fn token(shared: &Shared, pod: &Pod, seconds: Option<i64>) -> Result<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref())
        .unwrap_or("default");
    let accounts: Api<ServiceAccount> = Api::namespaced(shared.client.clone(), &namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: seconds,
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("no token was issued")?.token)
}
