{{/* Names, labels and values that all templates share. _pod.tpl has what pods share. */}}

{{- define "aeenc.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The port of each component; all are fixed. */}}
{{- define "aeenc.port" -}}
{{- get (dict "encoder" "50051" "index" "50052" "sampler" "50053" "trainer" "50054" "gold" "50055" "gateway" "8080" "workbench" "8700" "redis" "6379") . -}}
{{- end -}}

{{/* (list root component): where clients find it. A headless Service lists every pod, and gRPC deals calls among them. */}}
{{- define "aeenc.target" -}}
dns:///{{ include "aeenc.fullname" (index . 0) }}-{{ index . 1 }}:{{ include "aeenc.port" (index . 1) }}
{{- end -}}

{{- define "aeenc.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* (list root component) */}}
{{- define "aeenc.componentLabels" -}}
{{ include "aeenc.selectorLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* (list root component) */}}
{{- define "aeenc.labels" -}}
{{ include "aeenc.componentLabels" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- end -}}

{{- define "aeenc.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "aeenc.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The components that run, as JSON. */}}
{{- define "aeenc.components" -}}
{{- $found := list "encoder" "index" "sampler" "trainer" -}}
{{- range list "gold" "gateway" "workbench" -}}
{{- if (index $.Values .).enabled -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- if .Values.redis.bundled.enabled -}}{{- $found = append $found "redis" -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* A setting's value as text: Helm reads whole numbers as floats, which it would write as 3.2e+10. */}}
{{- /* The capacity of an encoder: its pool's own, or by its device. Takes the root and the pool. */ -}}
{{- define "aeenc.queuedTokens" -}}
{{- $root := index . 0 }}{{- $pool := index . 1 -}}
{{- $default := ternary 1048576 $root.Values.encoder.queuedTokens (gt (int (default 0 $pool.gpus)) 0) -}}
{{- include "aeenc.text" (default $default $pool.queuedTokens) -}}
{{- end -}}

{{- define "aeenc.text" -}}
{{- if or (kindIs "map" .) (kindIs "slice" .) -}}
{{- toJson . -}}
{{- else if kindIs "float64" . -}}
{{- ternary (printf "%.0f" .) (toString .) (eq (floor .) .) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* (list name secret): an environment variable that a Secret holds. */}}
{{- define "aeenc.secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom: {secretKeyRef: {name: {{ (index . 1).name | quote }}, key: {{ (index . 1).key | quote }}}}
{{- end -}}

{{/*
(list prefix settings secretSettings): `settings` is a list, in which later ones win; null takes one away, which a secret
one of the same name needs ("aeenc.workload" refuses both). `merge` would take 0 and false for nothing.
*/}}
{{- define "aeenc.settings" -}}
{{- $prefix := index . 0 -}}
{{- $settings := dict -}}
{{- range index . 1 }}{{ range $name, $value := . }}{{ $_ := set $settings $name $value }}{{ end }}{{ end }}
{{- range $name, $value := $settings }}
{{- if not (kindIs "invalid" $value) }}
- {name: {{ $prefix }}{{ $name }}, value: {{ include "aeenc.text" $value | quote }}}
{{- end }}
{{- end }}
{{- range $name, $secret := index . 2 }}
{{ include "aeenc.secretEnv" (list (printf "%s%s" $prefix $name) $secret) }}
{{- end }}
{{- end -}}
